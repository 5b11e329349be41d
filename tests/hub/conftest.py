"""Fixtures of the Hub's tests: one on loopback, and a run with secrets to publish from."""

import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub_server import CANARY, TOKEN, HubServer
from made_up import save_tiny_model
from secret_run import make_run, open_ledger

from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / f"{CANARY}-model")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub that `huggingface_hub` talks to, without a token in the environment."""
    server = HubServer(TOKEN)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # its storage servers have an own API
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nonexistent/token")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name, value in {"HF_ENDPOINT": server.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": "/nonexistent"}.items():
        monkeypatch.setenv(name, value)  # for commands in processes of their own
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path)


@pytest.fixture
def ledger(run: RunFolder) -> Iterator[Ledger]:
    opened = open_ledger(run)
    yield opened
    opened.close()
