"""Any order of events: the ledger agrees with a plain model of it, and its promises hold at every step."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from ledger_rows import follow, session, turn
from sqlalchemy import event, select

from clawrl_trl.ledger import AlreadyTrained, IllegalTransition, Ledger, batches, policies, samples, turns
from clawrl_trl.ledger.schema import Batch, Feedback, Policy, Sample, Turn, Verdict

TEACHER: dict[str, Any] = {"teacher_logprobs": [-1.0, -2.0], "plain_logprobs": [-1.5, -2.5]}


def opened(path: Path) -> Ledger:
    """The ledger without fsync: no machine dies here."""
    ledger = Ledger.open(path)
    event.listen(ledger.writer_engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return ledger


class Machine(RuleBasedStateMachine):
    """Turns, samples, batches and policies, beside dictionaries that say what they should be."""

    template: Path
    turn_ids = Bundle("turn_ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "ledger.db"
        shutil.copy(self.template, path)
        self.ledger = opened(path)
        self.turns: dict[str, str] = {}
        self.main: set[str] = set()
        self.followed: set[str] = set()
        self.void: set[str] = set()
        self.claimed: set[str] = set()
        self.samples: dict[str, str] = {}
        self.batches: dict[str, tuple[str, list[str]]] = {}
        self.trained: list[str] = []
        self.policies = {0: "serving"}
        self.clock = 10.0

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        with self.ledger.transaction() as tx:
            self.session = session(tx, "chat").id

    @rule(
        target=turn_ids,
        kind=st.sampled_from(["main", "main", "main", "side"]),
        version=st.integers(0, 2),
        answered=st.booleans(),
    )
    def add(self, kind: str, version: int, answered: bool) -> str:
        with self.ledger.transaction() as tx:
            row = turns.add(tx, turn(self.session, kind=kind, policy_version=version))
        self.turns[row.id] = "awaiting_next_state" if kind == "main" else "captured"
        if kind == "main":
            self.main.add(row.id)
        if answered:
            self.next_state(row.id)
        return row.id

    def _to_judge(self, turn_id: str) -> None:
        state = self.turns[turn_id]
        if state == "judging":
            if turn_id in self.claimed:
                self.void.add(turn_id)
        elif state != "judged" or self.samples.get(turn_id) not in ("leased", "trained"):
            self.turns[turn_id] = "judging"
            self.samples.pop(turn_id, None)

    @rule(turn_id=turn_ids)
    def answer(self, turn_id: str) -> None:
        self.next_state(turn_id)

    def next_state(self, turn_id: str) -> None:
        with self.ledger.transaction() as tx:
            changed = follow(tx, turn_id, now=self.clock)
        assert changed == (turn_id in self.main and turn_id not in self.followed)
        if changed:
            self.followed.add(turn_id)
            self._to_judge(turn_id)

    @rule(turn_id=turn_ids, value=st.sampled_from([-1.0, 1.0]))
    def say(self, turn_id: str, value: float) -> None:
        self.feedback(turn_id, value)

    def feedback(self, turn_id: str, value: float) -> None:
        with self.ledger.transaction() as tx:
            turns.add_feedback(tx, Feedback(turn_id=turn_id, kind="thumbs", value=value))
        if turn_id in self.main:
            self._to_judge(turn_id)

    @precondition(lambda self: "judging" in self.turns.values())
    @rule(limit=st.integers(1, 3))
    def look(self, limit: int) -> None:
        self.claim(limit)

    def claim(self, limit: int) -> None:
        with self.ledger.transaction() as tx:
            claimed = turns.claim_judging(tx, limit, self.clock, 1e9)
        due = [one for one, state in self.turns.items() if state == "judging" and one not in self.claimed - self.void]
        due.sort(key=lambda one: one not in self.void)
        assert claimed == due[:limit]
        self.claimed |= set(claimed)
        self.void -= set(claimed)

    @precondition(lambda self: self.main)
    @rule(
        data=st.data(),
        score=st.sampled_from([None, -1.0, 1.0]),
        teacher=st.booleans(),
        age=st.integers(0, 2),
        interrupted=st.booleans(),
    )
    def verdict(self, data: st.DataObject, score: float | None, teacher: bool, age: int, interrupted: bool) -> None:
        due = sorted(one for one in self.main if self.turns[one] == "judging")
        turn_id = data.draw(st.sampled_from(due or sorted(self.main)))
        self.claim(3)
        if interrupted:
            self.feedback(turn_id, 1.0)
        teaches = score is not None or teacher
        fields: dict[str, Any] = TEACHER if teacher else {}
        row = Sample(turn_id=turn_id, score=score, policy_version=age, **fields) if teaches else None
        with self.ledger.transaction() as tx:
            recorded = turns.record_verdict(tx, Verdict(turn_id=turn_id, judge="any", score=score), row)
        assert recorded == (self.turns[turn_id] == "judging" and turn_id not in self.void)
        if recorded:
            self.turns[turn_id] = "judged"
            self.claimed.discard(turn_id)
            if teaches:
                self.samples[turn_id] = "ready"

    @precondition(lambda self: "awaiting_next_state" in self.turns.values())
    @rule()
    def expire(self) -> None:
        with self.ledger.transaction() as tx:
            count = turns.expire(tx, silent_since=self.clock)
        waiting = [one for one, state in self.turns.items() if state == "awaiting_next_state"]
        assert count == len(waiting)
        self.turns |= dict.fromkeys(waiting, "expired")

    @precondition(lambda self: self.samples)
    @rule(
        size=st.integers(1, 3),
        needs=st.sampled_from([("score",), ("teacher",), ("score", "teacher")]),
        hold=st.booleans(),
    )
    def lease(self, size: int, needs: tuple[str, ...], hold: bool) -> None:
        open_ = [one for one, (state, _) in self.batches.items() if state == "leased"]
        held_ids = open_ if hold else []
        with self.ledger.transaction() as tx:
            current = max(self.policies)
            batch = batches.lease(
                tx, size=size, needs=needs, max_staleness=1, current_version=current, held_ids=held_ids
            )
            rows = {row.turn_id: row for row in tx.scalars(select(Sample))}
        if open_ and not hold:
            assert batch is not None and batch.id == open_[0]
            return
        for turn_id, row in rows.items():
            if row.state == "dropped" and self.samples[turn_id] == "ready":
                self.samples[turn_id] = "dropped"
        fresh = (0, current)
        ready = [one for one, state in self.samples.items() if state == "ready" and rows[one].policy_version in fresh]
        assert (batch is None) == (not ready)
        if batch is not None:
            with self.ledger.reader() as tx:
                taken = [row.turn_id for row, _ in batches.samples_of(tx, tx.get(Batch, batch.id))]  # type: ignore[arg-type]
            assert len(taken) == min(size, len(ready)) and set(taken) <= set(ready)
            self.samples |= dict.fromkeys(taken, "leased")
            self.batches[batch.id] = ("leased", taken)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), again=st.booleans())
    def commit(self, data: st.DataObject, again: bool) -> None:
        batch_id = data.draw(st.sampled_from(sorted(self.batches)))
        state, taken = self.batches[batch_id]
        version = max(self.policies) + 1
        policy = {"version": version, "parent": 0, "path": f"v{version}"}
        for _ in range(1 + again):
            try:
                with self.ledger.transaction() as tx:
                    batches.commit(tx, [batch_id], Policy(**policy))
                assert state == "leased"
            except AlreadyTrained:
                assert state != "leased"
                return
        self.batches[batch_id] = ("trained", taken)
        self.trained += [one for one in taken if self.samples[one] == "leased"]
        self.samples |= {one: "trained" for one in taken if self.samples[one] == "leased"}
        self.policies[version] = "candidate"

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        batch_id = data.draw(st.sampled_from(sorted(self.batches)))
        state, taken = self.batches[batch_id]
        try:
            with self.ledger.transaction() as tx:
                batches.release(tx, batch_id, "any")
            assert state != "trained"
        except AlreadyTrained:
            assert state == "trained"
            return
        if state == "leased":
            self.batches[batch_id] = ("released", taken)
            self.samples |= {one: "ready" for one in taken if self.samples[one] == "leased"}

    @precondition(lambda self: any(state == "ready" for state in self.samples.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        free = sorted(one for one, state in self.samples.items() if state == "ready")
        turn_id = data.draw(st.sampled_from(free))
        with self.ledger.transaction() as tx:
            assert samples.drop(tx, samples.of_turn(tx, turn_id).id, "any")  # type: ignore[union-attr]
        self.samples[turn_id] = "dropped"

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), reject=st.booleans())
    def decide(self, data: st.DataObject, reject: bool) -> None:
        version = data.draw(st.sampled_from(sorted(self.policies)))
        state = self.policies[version]
        allowed = {"candidate"} if reject else {"candidate", "retired", "serving"}
        try:
            with self.ledger.transaction() as tx:
                if reject:
                    policies.reject(tx, version, "any")
                else:
                    policies.promote(tx, version)
            assert state in allowed or (reject and state == "rejected")
        except IllegalTransition:
            assert state not in allowed
            return
        if not reject:
            self.policies |= {one: "retired" for one, now in self.policies.items() if now == "serving"}
        self.policies[version] = "rejected" if reject else "serving"

    @precondition(lambda self: self.batches)
    @rule()
    def reopen(self) -> None:
        path = self.ledger.path
        assert path is not None
        self.ledger.close()
        self.ledger = opened(path)

    @invariant()
    def the_ledger_is_what_the_model_says(self) -> None:
        with self.ledger.reader() as tx:
            assert {row.id: row.state for row in tx.scalars(select(Turn))} == self.turns
            assert {row.turn_id: row.state for row in tx.scalars(select(Sample))} == self.samples
            assert {row.version: row.state for row in policies.all(tx)} == self.policies
            found = {row.id: row.state for row in tx.scalars(select(Batch))}
            assert found == {one: state for one, (state, _) in self.batches.items()}

    @invariant()
    def nothing_is_trained_twice(self) -> None:
        assert len(self.trained) == len(set(self.trained))
        assert list(self.policies.values()).count("serving") == 1


@pytest.mark.timeout(600)
def test_any_order_of_events(empty_ledger: Path) -> None:
    machine = type("Machine", (Machine,), {"template": empty_ledger})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=checks
        ),
    )
