"""A real vLLM server passes the tests of the dialect; where it is known to differ, they say so."""

import pytest
from engine_conformance import *  # noqa: F403 - the tests themselves
from engine_updates import *  # noqa: F403

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("vllm server")]
