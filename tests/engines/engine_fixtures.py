"""Fixtures that every engine's tests share; each folder's conftest adds the `server`."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_models
import httpx
import openai
import pytest
from engine_server import Server
from filelock import FileLock
from transformers import AutoTokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the base model and its policies; made once for all test processes."""
    chosen_folder = os.environ.get("CLAWRL_TEST_ENGINE_MODELS")
    recipe = hashlib.sha256(Path(engine_models.__file__).read_bytes()).hexdigest()[:12]
    folder = (
        Path(chosen_folder) if chosen_folder else tmp_path_factory.getbasetemp().parent / f"engine-models-{recipe}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            engine_models.build_all(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_folder / "base")


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.openai()


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="session")
def adapters(server: Server, model_folder: Path) -> dict[str, Path]:
    """Adapters loaded into the server: name to folder."""
    loaded = {"policy-v1": model_folder / "one", "policy-v2": model_folder / "two"}
    with server.http() as http:
        for name, path in loaded.items():
            http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}).raise_for_status()
    return loaded
