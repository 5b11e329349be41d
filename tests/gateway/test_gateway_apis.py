"""The other APIs over the embedded engine."""

import pytest
from api_conversations import *  # noqa: F403 - the tests themselves

pytestmark = pytest.mark.xdist_group("real engine")
