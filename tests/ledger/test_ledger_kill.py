"""Processes that die by SIGKILL, in the middle of a transaction and at any other moment.

What a process said was committed is there; what it had not committed is not; no sample is in two batches that
count; and whoever comes next goes on.
"""

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ledger_rows import judged, session, turn
from sqlalchemy import select

from clawrl_trl.ledger import Ledger, batches, policies, samples, turns
from clawrl_trl.ledger.schema import Batch, Sample

HERE = str(Path(__file__).parent)

PRELUDE = """
import os
import sys
sys.path.insert(0, sys.argv[2])
from ledger_rows import session, turn
from clawrl_trl.ledger import AlreadyTrained, Ledger, batches, policies, turns
from clawrl_trl.ledger.schema import Policy
ledger = Ledger.open(sys.argv[1])
lease = dict(size=3, needs=("score",), max_staleness=1000, current_version=0)
def say(*words):
    print(*words, flush=True)
"""

GATEWAY = """
say("ready")
while True:
    say("turn")
    with ledger.transaction() as tx:
        row = turns.add(tx, turn(session(tx, "chat").id, prompt_ids=list(range(500))))
        tx.flush()
        say("flushed", row.id)
    say("committed", row.id)
"""

TRAINER = """
say("ready")
while True:
    with ledger.transaction() as tx:
        batch = batches.lease(tx, **lease)
        if batch is None:
            break
        say("lease", batch.id)
    say("leased", batch.id)
    try:
        with ledger.transaction() as tx:
            number = policies.next_version(tx)
            batches.commit(tx, [batch.id], Policy(version=number, parent=number - 1, path=f"v{os.getpid()}"))
            say("commit", batch.id)
    except (AlreadyTrained, ValueError):
        say("beaten", batch.id)
        continue
    say("trained", batch.id)
say("done")
"""

STOPS = """
with ledger.transaction() as tx:
    batch = batches.lease(tx, **lease)
    if sys.argv[3] == "leased":
        say(batch.id)
        sys.stdin.read()
with ledger.transaction() as tx:
    batches.commit(tx, [batch.id], Policy(version=1, parent=0, path="v"))
    say(batch.id)
    sys.stdin.read()
"""


def start(program: str, url: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PRELUDE + program, url, HERE, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: "subprocess.Popen[str]") -> list[list[str]]:
    """SIGKILL; returns what the process had said and nobody had read yet."""
    process.send_signal(signal.SIGKILL)
    return rest(process)


def rest(process: "subprocess.Popen[str]") -> list[list[str]]:
    """The whole lines that nobody has read yet, once the process has ended.

    From the stream itself: `communicate` reads the pipe behind the stream's buffer, and what `read` left in the buffer
    would be lost, in the middle of a line.
    """
    assert process.stdout is not None
    with process:
        return [line.split() for line in process.stdout if line.endswith("\n")]


def read(process: "subprocess.Popen[str]", lines: int) -> list[list[str]]:
    assert process.stdout is not None
    return [process.stdout.readline().split() for _ in range(lines)]


def trained_once(ledger: Ledger) -> int:
    """Check that every trained sample is in exactly one trained batch; how many there are."""
    with ledger.reader() as tx:
        done = tx.scalars(select(Batch).where(Batch.state == "trained")).all()
        often = Counter(sample_id for batch in done for sample_id in batch.sample_ids)
        trained = set(tx.scalars(select(Sample.id).where(Sample.state == "trained")))
        assert set(often) == trained and set(often.values()) <= {1}
        assert {batch.trained_into for batch in done} <= {row.version for row in policies.all(tx)}
        assert len({batch.trained_into for batch in done}) == len(done)
        return len(trained)


@pytest.mark.parametrize("moment", ["leased", "committing"])
def test_a_trainer_killed_inside_a_transaction_changed_nothing(ledger: Ledger, moment: str) -> None:
    url = ledger.url.render_as_string(hide_password=False)
    with ledger.transaction() as tx:
        judged(tx, 3)
    process = start(STOPS, url, moment)
    [[batch_id]] = read(process, 1)
    kill(process)
    with ledger.transaction() as tx:
        counts = samples.counts(tx)
        assert [row.version for row in policies.all(tx)] == [0]
        again = batches.lease(tx, size=3, needs=("score",), max_staleness=0, current_version=0)
        assert again is not None
    if moment == "leased":
        assert counts["ready"] == 3 and again.id != batch_id
    else:
        assert counts["leased"] == 3 and again.id == batch_id


@pytest.mark.kill9
def test_what_was_committed_survives_and_what_was_not_does_not_show(ledger: Ledger) -> None:
    url = ledger.url.render_as_string(hide_password=False)
    chance = random.Random(0)
    committed: set[str] = set()
    flushed: set[str] = set()
    for _ in range(6):
        process = start(GATEWAY, url)
        said = read(process, 1 + chance.randrange(1, 40)) + kill(process)
        committed |= {words[1] for words in said if words[0] == "committed"}
        flushed |= {words[1] for words in said if words[0] == "flushed"}
    with ledger.transaction() as tx:
        home = session(tx, "chat")
        found = turns.of_session(tx, home.id)
        kept = {row.id for row in found}
        assert committed <= kept <= flushed and len(flushed - committed) <= 6
        assert all(row.digest == row.compute_digest() for row in found)
        turns.add(tx, turn(home.id))


@pytest.mark.kill9
def test_trainers_that_are_killed_train_each_sample_once(ledger: Ledger) -> None:
    url = ledger.url.render_as_string(hide_password=False)
    chance = random.Random(1)
    total = 60
    with ledger.transaction() as tx:
        judged(tx, total)
    said_trained: list[str] = []
    for _ in range(6):
        process = start(TRAINER, url)
        said = read(process, chance.randrange(1, 14)) + kill(process)
        said_trained += [words[1] for words in said if words[0] == "trained"]
        trained_once(ledger)
    process = start(TRAINER, url)
    assert rest(process)[-1] == ["done"] and process.returncode == 0
    assert trained_once(ledger) == total
    assert len(said_trained) == len(set(said_trained))


def test_two_trainers_at_once_train_each_sample_once(ledger: Ledger) -> None:
    url = ledger.url.render_as_string(hide_password=False)
    total = 45
    with ledger.transaction() as tx:
        judged(tx, total)
    pair = [start(TRAINER, url) for _ in range(2)]
    said = [line.split() for process in pair for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in pair] == [0, 0]
    trained = [words[1] for words in said if words[0] == "trained"]
    assert len(trained) == len(set(trained)) == total // 3
    assert trained_once(ledger) == total
