"""One real vLLM server for the tests of its dialect, started by our own launcher.

Files that share a server are of one group, for a start takes a minute; the others have servers of their own.

Without vLLM the tests skip; the continuous integration, where it is installed, takes a skip for a failure.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("engine_conformance", "engine_updates", "engine_checks")

from engine_fixtures import *  # noqa: E402, F403 - pytest finds fixtures by name
from engine_server import VLLM, Server, start_engine, stop_engine  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _vllm_is_there() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")


@pytest.fixture(scope="session")
def vllm_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the server."""
    return tmp_path_factory.mktemp("vllm-run")


@pytest.fixture(scope="session")
def server(model_folder: Path, vllm_run: Path) -> Iterator[Server]:
    """The server, with the model of the engine tests."""
    process, started = start_engine(
        vllm_run, VLLM, model_name_or_path=str(model_folder / "base"), max_model_len=512, vllm_max_lora_rank=8
    )
    yield started
    stop_engine(process)
