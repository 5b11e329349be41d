"""A Hub on loopback, and a run folder full of what nobody else may read."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub_server import CANARY, TOKEN, HubServer
from made_up import fill, make_samples, save_tiny_model
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Turn, Verdict
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
    """A run folder as one that is served and trained leaves it, with a secret in every part of it."""
    folder = RunFolder(tmp_path / f"{CANARY}-run").make()
    settings = ServeSettings(run=str(folder.path), judge_url=f"http://{CANARY}.internal:1", judge="llm")
    settings.save()
    folder.announce("engine", "http://127.0.0.1:1", key=f"{CANARY}-engine-key")
    (folder.logs / "gateway.log").write_text(f"{CANARY} in a log\n")
    screenshot = folder.find_screenshots("chat") / "0001.png"
    screenshot.parent.mkdir(parents=True)
    screenshot.write_bytes(f"\x89PNG {CANARY}".encode())
    (folder.path / "persona.yaml").write_text(f"name: {CANARY}\n")
    (folder.path / "interactions.jsonl").write_text(json.dumps({"reply": CANARY}) + "\n")
    (folder.path / "notes.json").write_text(json.dumps({"about": CANARY}))
    return folder


@pytest.fixture
def ledger(run: RunFolder) -> Iterator[Ledger]:
    """The run's ledger with eight judged turns; messages, replies and hints hold the canary."""
    opened = Ledger.open(run.ledger)
    fill(opened, make_samples(8), session=f"{CANARY}-session")
    with opened.transaction() as tx:
        for turn in tx.scalars(select(Turn)):
            turn.messages = [{"role": "user", "content": f"my secret is {CANARY}"}]
            turn.response = {"role": "assistant", "content": f"I keep {CANARY} for me"}
        for verdict in tx.scalars(select(Verdict)):
            verdict.hint, verdict.hint_source = f"never say {CANARY}", "owner"
    yield opened
    opened.close()
