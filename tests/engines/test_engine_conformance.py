"""The embedded engine passes the tests of the dialect."""

import pytest
from engine_conformance import *  # noqa: F403 - the tests themselves
from engine_updates import *  # noqa: F403

pytestmark = pytest.mark.xdist_group("engine")
