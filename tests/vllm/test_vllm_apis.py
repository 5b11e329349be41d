"""The other APIs over a real vLLM server: the gateway's translation, so that every token is captured."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_server import Server

pytest.register_assert_rewrite("api_conversations")

from api_conversations import *  # noqa: E402, F403 - the tests themselves
from gateway_rig import Rig, running  # noqa: E402

from clawrl_trl.engines.client import EngineClient  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("vllm server")]


@pytest.fixture
def models(model_folder: Path) -> Path:
    return model_folder


@pytest.fixture
def live(server: Server, tmp_path: Path) -> Iterator[Rig]:
    """A gateway over the server."""
    client = EngineClient(server.base_url, server.key, timeout=120)
    address = {"engine_url": server.base_url, "engine_client": client}
    with running(tmp_path / "run", patience_s=30, max_model_len=512, **address) as rig:  # type: ignore[arg-type]
        yield rig
