"""A run folder full of what nobody else may read."""

import json
from pathlib import Path

from hub_server import CANARY
from made_up import fill, make_samples
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Turn, Verdict
from clawrl_trl.run import RunFolder


def make_run(parent: Path) -> RunFolder:
    """Make a run folder as one that is served and trained leaves it, with a secret in every part of it."""
    folder = RunFolder(parent / f"{CANARY}-run").make()
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


def open_ledger(run: RunFolder) -> Ledger:
    """Open the run's ledger with eight judged turns; messages, replies and hints hold the canary."""
    opened = Ledger.open(run.ledger)
    fill(opened, make_samples(8), session=f"{CANARY}-session")
    with opened.transaction() as tx:
        for turn in tx.scalars(select(Turn)):
            turn.messages = [{"role": "user", "content": f"my secret is {CANARY}"}]
            turn.response = {"role": "assistant", "content": f"I keep {CANARY} for me"}
        for verdict in tx.scalars(select(Verdict)):
            verdict.hint, verdict.hint_source = f"never say {CANARY}", "owner"
    return opened
