"""One real server for all engine tests, or any server named by the environment.

`CLAWRL_TEST_ENGINE_URL` (without /v1), `CLAWRL_ENGINE_KEY` and `CLAWRL_TEST_ENGINE_MODELS` (a folder made by
`engine_models.build_all`) run the conformance tests against another engine, such as vLLM.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engine_models import build_all
from filelock import FileLock

from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

KEY = "test-engine-key"


@dataclass(frozen=True)
class Server:
    """Where an engine listens, and ways to talk to it."""

    base_url: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=self.key, max_retries=0, timeout=120)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, headers=self.headers, timeout=120)

    def async_http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base_url, headers=self.headers, timeout=120)


def start_engine(run: Path, **settings: Any) -> tuple[subprocess.Popen[bytes], Server]:
    """Start the engine in a subprocess; returns when it has announced itself."""
    ServeSettings(run=str(run), **settings).save()
    log = (run / "engine.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(run)],
        env={**os.environ, "CLAWRL_ENGINE_KEY": KEY, "OMP_NUM_THREADS": "1"},
        stderr=log,
    )
    while (announced := RunFolder(run).announced("engine")) is None:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError((run / "engine.log").read_text())
    return process, Server(announced["base_url"], announced["key"])


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the base model and its policies; made once for all test processes."""
    given = os.environ.get("CLAWRL_TEST_ENGINE_MODELS")
    folder = Path(given) if given else tmp_path_factory.getbasetemp().parent / "engine-models"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            build_all(folder)
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
