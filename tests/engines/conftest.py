"""One real server for all engine tests, or any server named by the environment.

`CLAWRL_TEST_ENGINE_URL` (without /v1), `CLAWRL_ENGINE_KEY` and `CLAWRL_TEST_ENGINE_MODELS` (a folder made by
`engine_models.build_all`) run the conformance tests against another engine, such as vLLM.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import engine_models
import openai
import pytest
from engine_server import KEY, Server, start_engine
from filelock import FileLock


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the base model and its policies; made once for all test processes."""
    given = os.environ.get("CLAWRL_TEST_ENGINE_MODELS")
    recipe = hashlib.sha256(Path(engine_models.__file__).read_bytes()).hexdigest()[:12]
    folder = Path(given) if given else tmp_path_factory.getbasetemp().parent / f"engine-models-{recipe}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            engine_models.build_all(folder)
    return folder


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    given = os.environ.get("CLAWRL_TEST_ENGINE_URL")
    if given:
        yield Server(given, os.environ.get("CLAWRL_ENGINE_KEY", KEY))
        return
    run = tmp_path_factory.mktemp("engine-run")
    process, started = start_engine(run, model_name_or_path=str(model_folder / "base"), max_model_len=512)
    yield started
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.openai()


@pytest.fixture(scope="session")
def adapters(server: Server, model_folder: Path) -> dict[str, Path]:
    """Adapters loaded into the server: name to folder."""
    loaded = {"policy-v1": model_folder / "one", "policy-v2": model_folder / "two"}
    with server.http() as http:
        for name, path in loaded.items():
            http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}).raise_for_status()
    return loaded
