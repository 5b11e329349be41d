"""`kill -9` of gateway, judge and trainer at random moments: nothing read is lost, nothing is trained twice."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from live_run import LiveRun, wait_for
from sqlalchemy import select

from clawrl_trl.envs.base.actor import TRANSPORT_ERRORS
from clawrl_trl.ledger import Ledger, policies, turns
from clawrl_trl.ledger.schema import Batch, Sample

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.kill9, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
KILLS = 9
QUESTION = "Tom has {} apples. He buys {} more apples. How many apples does Tom have now?"
OBJECTION = "Please write that without bold and without the numbered steps, in plain sentences."


class Chatter(threading.Thread):
    """A client that chats without a pause and remembers every reply that it read to the end."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(daemon=True)
        self.live = run
        self.read: dict[str, str] = {}
        self.failures = 0
        self._halt = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._halt.is_set():
            number += 1
            messages: list[Any] = [{"role": "user", "content": QUESTION.format(number % 37 + 2, number % 11 + 2)}]
            try:
                for answer in (OBJECTION, "Thanks, that is how I like it!"):
                    messages.append({"role": "assistant", "content": self._ask(messages, f"chat-{number}")})
                    messages.append({"role": "user", "content": answer})
                self._ask(messages, f"chat-{number}")
            except TRANSPORT_ERRORS:
                self.failures += 1
                self._halt.wait(0.2)

    def _ask(self, messages: list[Any], session: str) -> str:
        with self.live.client() as client:
            stream = client.chat.completions.with_raw_response.create(
                model="clawrl",
                messages=messages,
                max_tokens=120,
                stream=True,
                extra_headers={"X-Session-Id": session},
            )
            text, ended = "", False
            for chunk in stream.parse():
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    ended = ended or choice.finish_reason is not None
            if not ended:
                raise openai.OpenAIError("the stream was cut")
            self.read[stream.headers["x-clawrl-turn-id"]] = text
            return text

    def stop(self) -> None:
        self._halt.set()
        self.join(90)


class Trainer:
    """`examples/train.py` on a run that is being served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = {"output_dir": self.folder, "batch_timeout": 1, "port": 0, "learning_rate": 1e-4}
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        with (self.folder / "logs" / "trainer.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "train.py"), *words],
                env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)


def _version(folder: Path) -> int:
    ledger = Ledger.open(folder / "ledger.db")
    with ledger.reader() as tx:
        version = policies.serving(tx).version
    ledger.close()
    return version


def _check_ledger(folder: Path, read: dict[str, str]) -> None:
    ledger = Ledger.open(folder / "ledger.db")
    with ledger.reader() as tx:
        for turn_id, text in read.items():
            turn = turns.get(tx, turn_id)
            assert turn is not None, "a reply that was read to its end is missing"
            assert turn.response["content"] == text
        trained = [batch for batch in tx.scalars(select(Batch)) if batch.state == "trained"]
        times = Counter(sample for batch in trained for sample in batch.sample_ids)
        assert times, "nothing was trained"
        assert max(times.values()) == 1, "a sample was trained twice"
        assert set(times) == set(tx.scalars(select(Sample.id).where(Sample.state == "trained")))
        versions = {policy.version: policy for policy in policies.all(tx)}
        into = Counter(batch.trained_into for batch in trained)
        assert all(version in versions for version in into)
        assert {policy.version for policy in versions.values() if policy.version > 0} == set(into)
        line, version = set(), policies.latest(tx).version
        while version:
            line.add(version)
            parent = versions[version].parent
            assert parent is not None and parent < version
            version = parent
        on_the_line = Counter(s for batch in trained if batch.trained_into in line for s in batch.sample_ids)
        assert max(on_the_line.values()) == 1
    ledger.close()


def test_nine_kills(tmp_path: Path) -> None:
    rng = random.Random(20)
    run = LiveRun(tmp_path / "run", "--port", "0").start()
    trainer = Trainer(run.folder.path)
    trainer.start()
    chatter = Chatter(run)
    chatter.start()
    try:
        wait_for(lambda: _version(run.folder.path) > 0, 120, "the first policy")
        for number in range(KILLS):
            target = ("gateway", "judge", "trainer")[number % 3]
            threading.Event().wait(rng.uniform(0.1, 3.0))
            if target == "trainer":
                trainer.kill()
                trainer.start()
                if number > KILLS - 4 or rng.random() < 0.7:
                    before = _version(run.folder.path)
                    wait_for(lambda before=before: _version(run.folder.path) > before, 120, "training after a kill")
            else:
                wait_for(lambda target=target: run.folder.read_announced(target), 60, f"the {target}'s return")
                run.kill(target)
        before, replies_before = _version(run.folder.path), len(chatter.read)
        wait_for(lambda: len(chatter.read) > replies_before + 6, 120, "chatting after the kills")
        wait_for(lambda: _version(run.folder.path) > before, 120, "training after the kills")
    finally:
        chatter.stop()
        code = trainer.stop()
        served = run.stop()
    assert (code, served) == (0, 0)
    assert len(chatter.read) > KILLS
    _check_ledger(run.folder.path, chatter.read)
