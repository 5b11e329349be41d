"""One embedded engine for all engine tests, or any server named by the environment.

`CLAWRL_TEST_ENGINE_URL` (without /v1), `CLAWRL_ENGINE_KEY` and `CLAWRL_TEST_ENGINE_MODELS` (a folder made by
`engine_models.build_all`) run the conformance tests against a vLLM server that runs already.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("engine_conformance", "engine_updates", "engine_checks")

from engine_fixtures import *  # noqa: E402, F403 - pytest finds fixtures by name
from engine_server import KEY, Server, start_engine, stop_engine  # noqa: E402


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = os.environ.get("CLAWRL_TEST_ENGINE_URL")
    if url:
        yield Server(url, os.environ.get("CLAWRL_ENGINE_KEY", KEY), is_vllm=True)
        return
    run = tmp_path_factory.mktemp("engine-run")
    process, started = start_engine(run, model_name_or_path=str(model_folder / "base"), max_model_len=512)
    yield started
    stop_engine(process)
