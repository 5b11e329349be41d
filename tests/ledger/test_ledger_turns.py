"""A turn's way from the reply to the verdict, with everything that may come in between."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_rows import follow, judge, judged, session, turn
from sqlalchemy import func, select, text

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, batches, events, samples, schema, store, turns
from clawrl_trl.ledger.errors import AmbiguousName
from clawrl_trl.ledger.schema import Feedback, Sample, Verdict

INSPECTED = [
    "turn_id",
    "kind",
    "kind_reason",
    "state",
    "messages",
    "response",
    "finish_reason",
    "next_state",
    "next_state_provenance",
    "next_turn_id",
    "feedback",
    "votes",
    "score",
    "hint",
    "hint_source",
    "detail",
    "policy_version",
    "token_versions",
    "prompt_tokens",
    "completion_tokens",
]


def thumbs(turn_id: str, value: float = 1.0) -> Feedback:
    return Feedback(turn_id=turn_id, kind="thumbs", value=value)


def test_a_session_is_found_again_by_its_name_and_owner(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = session(tx, "chat", now=10.0)
        assert session(tx, "chat", now=20.0) is one
        assert (one.started_at, one.last_at) == (10.0, 20.0)
        assert session(tx, "chat", now=15.0).last_at == 20.0
        assert session(tx, "chat", owner="another").id != one.id
        assert session(tx).id != session(tx).id


def test_a_session_is_found_again_by_its_id(ledger: Ledger) -> None:
    named: dict[str, Any] = {"external_id": None, "identity_source": "prefix", "now": 1.0, "session_id": "s-1"}
    with ledger.transaction() as tx:
        one = turns.get_or_create_session(tx, owner="local", **named)
        assert one.id == "s-1" and turns.get_or_create_session(tx, owner="local", **named) is one
        with pytest.raises(ValueError, match="another owner"):
            turns.get_or_create_session(tx, owner="another", **named)


def test_main_turns_await_their_next_state_and_side_turns_stay(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx)
        main = turns.add(tx, turn(home.id))
        side = turns.add(tx, turn(home.id, kind="side"))
    assert (main.state, side.state) == ("awaiting_next_state", "captured")
    assert main.digest == main.compute_digest()
    with ledger.transaction() as tx:
        assert not follow(tx, side.id)
        assert turns.add_feedback(tx, thumbs(side.id)).state == "captured"
        assert turns.counts(tx)["captured"] == 1


def test_adding_a_reply_again_changes_nothing(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx)
        first = turns.add(tx, turn(home.id, completion_id="chatcmpl-x"))
    with ledger.transaction() as tx:
        again = turns.add(tx, turn(home.id, completion_id="chatcmpl-x"))
        other = turns.add(tx, turn(home.id, completion_id="chatcmpl-x", choice_index=1))
    assert again.id == first.id != other.id
    with ledger.reader() as tx:
        assert turns.by_completion(tx, "chatcmpl-x", 1).id == other.id  # type: ignore[union-attr]
        assert turns.by_completion(tx, "chatcmpl-y") is None


def test_the_first_next_state_counts(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        assert follow(tx, one.id, "no, 13", now=5.0)
        assert not follow(tx, one.id, "yes")
        assert not follow(tx, "turn_unknown")
    with ledger.reader() as tx:
        found = turns.get(tx, one.id)
        assert found is not None and found.state == "judging" and found.next_state_at == 5.0
        assert found.next_state == [{"role": "user", "content": "no, 13"}]
        assert found.next_state_provenance == ["owner"]


def test_silent_and_finished_sessions_expire_and_late_replies_revive(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        quiet, busy, done = (session(tx, name, now=now) for name, now in [("q", 1.0), ("b", 9.0), ("d", 9.0)])
        done.done = True
        made = [turns.add(tx, turn(home.id)) for home in (quiet, busy, done)]
        turns.add(tx, turn(quiet.id, kind="side"))
    with ledger.transaction() as tx:
        assert turns.expire(tx, silent_since=5.0) == 2
        assert turns.expire(tx, silent_since=5.0) == 0
        assert [turns.get(tx, one.id).state for one in made] == [  # type: ignore[union-attr]
            "expired",
            "awaiting_next_state",
            "expired",
        ]
        assert follow(tx, made[0].id)
        assert turns.add_feedback(tx, thumbs(made[2].id)).state == "judging"


def test_claims_are_exclusive_until_their_lease_ends(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx)
        made = [turns.add(tx, turn(home.id)).id for _ in range(3)]
        for one in made:
            follow(tx, one)
    with ledger.transaction() as tx:
        assert turns.claim_judging(tx, 2, now=100.0, lease_s=30.0) == made[:2]
        assert turns.claim_judging(tx, 2, now=100.0, lease_s=30.0) == made[2:]
        assert turns.claim_judging(tx, 2, now=129.0, lease_s=30.0) == []
    with ledger.transaction() as tx:
        assert turns.claim_judging(tx, 9, now=130.0, lease_s=30.0) == made
        assert [one.judge_attempts for one in turns.read_locked(tx, made)] == [2, 2, 2]


def test_a_claim_that_is_renewed_lasts_and_one_that_is_lost_stays_so(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx)
        held, taken, void, released, done = made = [turns.add(tx, turn(home.id)) for _ in range(5)]
        for one in made:
            follow(tx, one.id)
        attempts = dict.fromkeys(turns.claim_judging(tx, 9, now=100.0, lease_s=30.0), 1)
        taken.judge_attempts = 2
        turns.add_feedback(tx, thumbs(void.id))
        released.judge_after = 0.0
        assert judge(tx, done.id, score=1.0)
    with ledger.transaction() as tx:
        turns.renew_claims(tx, {**attempts, "turn_unknown": 1}, 150.0)
    with ledger.transaction() as tx:
        assert turns.get(tx, done.id).state == "judged"  # type: ignore[union-attr]
        due = turns.claim_judging(tx, 9, now=140.0, lease_s=30.0)
        assert due == [void.id, released.id, taken.id]
        assert turns.claim_judging(tx, 9, now=150.0, lease_s=30.0) == [held.id]


def test_a_turn_that_was_never_put_off_is_claimed_before_those_that_wait(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx)
        waiting = [turns.add(tx, turn(home.id)).id for _ in range(9)]
        for one in waiting:
            follow(tx, one)
        turns.claim_judging(tx, 9, now=100.0, lease_s=30.0)
        for count, one in enumerate(reversed(waiting)):
            turns.retry_later(tx, one, 5.0 + count, "an exam is under way", is_attempt=False, now=100.0)
        new = turns.add(tx, turn(home.id)).id
        follow(tx, new)
        assert turns.claim_judging(tx, 2, now=200.0, lease_s=30.0) == [new, waiting[-1]]


def test_waits_that_were_no_attempt_are_told_once(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        follow(tx, one.id)
        for now in (100.0, 200.0, 300.0):
            turns.claim_judging(tx, 1, now=now, lease_s=30.0)
            turns.retry_later(tx, one.id, 60.0, "an exam is under way", is_attempt=False, now=now)
        assert [event.kind for event in events.of(tx, one.id)] == ["judge_retry"]
        for now in (400.0, 500.0):
            turns.claim_judging(tx, 1, now=now, lease_s=30.0)
            turns.retry_later(tx, one.id, 60.0, "late", now=now)
        assert len(events.of(tx, one.id)) == 3


def test_an_abstention_can_be_recorded_on_a_turn_that_cant_be_read(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        broken, other = (turns.add(tx, turn(session(tx).id)).id for _ in range(2))
        for one in (broken, other):
            follow(tx, one)
        tx.execute(text("UPDATE turns SET response = '!' WHERE id = :id"), {"id": broken})
    with ledger.transaction() as tx:
        assert turns.claim_judging(tx, 9, now=100.0, lease_s=30.0) == [broken, other]
        turns.record_unread(tx, Verdict(turn_id=broken, judge="none"))
    with ledger.transaction() as tx:
        assert turns.verdict_of(tx, broken) is not None
        assert turns.claim_judging(tx, 9, now=1e9, lease_s=30.0) == [other]


def test_a_failed_attempt_comes_back_later(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        follow(tx, one.id)
        turns.claim_judging(tx, 1, now=100.0, lease_s=30.0)
        turns.retry_later(tx, one.id, 60.0, "engine is away", now=110.0)
        assert turns.claim_judging(tx, 1, now=169.0, lease_s=30.0) == []
        assert turns.claim_judging(tx, 1, now=170.0, lease_s=30.0) == [one.id]
        [event] = events.of(tx, one.id)
        assert event.data == {"attempt": 1, "delay_s": 60.0, "error": "engine is away"}
        turns.retry_later(tx, "turn_unknown", 1.0, "gone")


def test_a_wait_that_was_no_attempt_is_not_counted(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        follow(tx, one.id)
        for now in (100.0, 200.0, 300.0):
            assert turns.claim_judging(tx, 1, now=now, lease_s=30.0) == [one.id] and one.judge_attempts == 1
            turns.retry_later(tx, one.id, 60.0, "an exam is under way", is_attempt=False, now=now)
            assert one.judge_attempts == 0
        assert turns.claim_judging(tx, 1, now=359.0, lease_s=30.0) == []


def test_a_verdict_makes_its_sample(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        [one] = judged(tx, score=1.0, teacher_logprobs=[-1, -2], plain_logprobs=[-3, -4], group="g", weight=0.5)
    with ledger.reader() as tx:
        row = samples.of_turn(tx, one.id)
        assert row is not None and (row.state, row.score, row.group, row.weight) == ("ready", 1.0, "g", 0.5)
        assert row.teacher_logprobs.tolist() == [-1, -2] and row.plain_logprobs.tolist() == [-3, -4]  # type: ignore[union-attr]
        assert turns.get(tx, one.id).state == "judged"  # type: ignore[union-attr]
        assert turns.verdict_of(tx, one.id).score == 1.0  # type: ignore[union-attr]


def test_a_verdict_may_make_no_sample(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id, trainable=False, logprobs=None, untrainable_reason="no ids"))
        follow(tx, one.id)
        assert judge(tx, one.id, score=None)
        assert samples.of_turn(tx, one.id) is None and one.state == "judged"


@pytest.mark.parametrize(
    ("fields", "sample", "message"),
    [
        ({}, {"teacher_logprobs": [-1], "plain_logprobs": [-1]}, "1 entries for 2 tokens"),
        ({}, {"turn_id": "turn_other"}, "sample of turn turn_other"),
        ({"trainable": False, "untrainable_reason": "greedy"}, {}, "not trainable: greedy"),
    ],
)
def test_a_sample_that_does_not_fit_its_turn_is_refused(
    ledger: Ledger, fields: dict[str, Any], sample: dict[str, Any], message: str
) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id, **fields))
        follow(tx, one.id)
        row = Sample(**({"turn_id": one.id, "score": 1.0, "policy_version": 0} | sample))
        with pytest.raises(ValueError, match=message):
            turns.record_verdict(tx, Verdict(turn_id=one.id, judge="rules"), row)
        assert one.state == "judging"


def test_the_second_verdict_is_refused(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        [one] = judged(tx)
        assert not judge(tx, one.id, score=-1.0)
        assert not judge(tx, "turn_unknown", score=None)
        assert turns.verdict_of(tx, one.id).score == 1.0  # type: ignore[union-attr]


def test_an_attempt_that_was_overtaken_is_refused(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        follow(tx, one.id)
        turns.claim_judging(tx, 1, now=100.0, lease_s=1.0)
        turns.claim_judging(tx, 1, now=200.0, lease_s=1.0)
        verdict = Verdict(turn_id=one.id, judge="slow", score=1.0)
        assert not turns.record_verdict(tx, verdict, None, attempt=1)
        assert turns.record_verdict(tx, Verdict(turn_id=one.id, judge="fast"), None, attempt=2)


def test_feedback_during_judging_voids_the_verdict_under_way(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        follow(tx, one.id)
        turns.claim_judging(tx, 1, now=100.0, lease_s=30.0)
        turns.add_feedback(tx, thumbs(one.id, -1.0))
        assert not judge(tx, one.id, score=1.0)
        turns.retry_later(tx, one.id, 60.0, "late", now=100.0)
        assert turns.claim_judging(tx, 1, now=100.0, lease_s=30.0) == [one.id]
        assert [row.value for row in turns.feedback_of(tx, one.id)] == [-1.0]
        assert judge(tx, one.id, score=-1.0)


def test_feedback_on_a_judged_turn_replaces_its_free_sample(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        [one] = judged(tx, score=1.0)
    with ledger.transaction() as tx:
        assert turns.add_feedback(tx, thumbs(one.id, -1.0)).state == "judging"
        assert judge(tx, one.id, score=-1.0)
    with ledger.reader() as tx:
        assert tx.scalars(select(Sample.score)).all() == [-1.0]
        assert tx.scalars(select(Verdict.score)).all() == [-1.0]


def test_a_turn_in_judging_again_has_no_sample_to_lease(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        [one] = judged(tx, score=1.0)
        turns.add_feedback(tx, thumbs(one.id, -1.0))
        assert samples.ready(tx, ("score",)) == 0
        lease: dict[str, Any] = {"size": 4, "needs": ("score",), "max_staleness": 9, "current_version": 0}
        assert batches.lease(tx, **lease) is None


def test_feedback_on_a_leased_turn_is_kept_and_changes_nothing(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        [one] = judged(tx)
        assert batches.lease(tx, size=1, needs=("score",), max_staleness=0, current_version=0)
    with ledger.transaction() as tx:
        assert turns.add_feedback(tx, thumbs(one.id, -1.0)).state == "judged"
        assert len(turns.feedback_of(tx, one.id)) == 1
        with pytest.raises(KeyError):
            turns.add_feedback(tx, thumbs("turn_unknown"))


def test_a_next_state_after_a_verdict_on_feedback_is_judged_too(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = turns.add(tx, turn(session(tx).id))
        turns.add_feedback(tx, thumbs(one.id, -1.0))
        assert judge(tx, one.id, score=-1.0)
        assert follow(tx, one.id, "write it without bold, please")
        assert one.state == "judging"


def test_lists_of_turns_are_in_order(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        mine, theirs = session(tx, "a"), session(tx, "a", owner="another")
        first, second, third = (turns.add(tx, turn(home.id)) for home in (mine, theirs, mine))
        side = turns.add(tx, turn(mine.id, kind="side"))
        assert turns.of_session(tx, mine.id) == [first, third, side]
        assert turns.recent_main(tx, "local", 9) == [first, third]
        assert turns.recent_main(tx, None, 2) == [second, third]


def test_sessions_are_listed_under_the_names_people_know(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        named, shared, other = session(tx, "mine", now=1.0), session(tx, "x", now=2.0), session(tx, "x", "b", 3.0)
        bare = session(tx, now=4.0)
        turns.add(tx, turn(named.id))
        turns.add(tx, turn(named.id, kind="side"))
        rows = turns.sessions(tx)
    assert [row["session_id"] for row in rows] == [bare.id, other.id, shared.id, "mine"]
    assert rows[-1] == {
        "session_id": "mine",
        "turns": 2,
        "main": 1,
        "side": 1,
        "started_at": 1.0,
        "last_at": 1.0,
    }


def test_inspect_shows_what_a_person_asks_for(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx, "mine")
        one = turns.add(tx, turn(home.id, kind_reason="header", token_versions=[0, 1]))
        bare = turns.add(
            tx, turn(home.id, trainable=False, prompt_ids=None, completion_ids=None, usage={"prompt_tokens": 7})
        )
        turns.add_feedback(tx, thumbs(one.id))
        follow(tx, one.id, "fine")
        votes = [{"score": 1, "raw": "+"}]
        verdict = Verdict(turn_id=one.id, judge="rules", votes=votes, score=1.0, hint="short", detail={"by": "votes"})
        turns.record_verdict(tx, verdict, None)
        said = turns.feedback_of(tx, one.id)[0]
        rows = turns.inspect(tx, "mine")
        assert rows == turns.inspect(tx, home.id)
        assert turns.inspect(tx, "nobody") == turns.explain(tx, "nobody") == []
        explained = turns.explain(tx, "mine")
    assert [list(row) for row in rows] == [INSPECTED, INSPECTED]
    assert rows[0] == {
        "turn_id": one.id,
        "kind": "main",
        "kind_reason": "header",
        "state": "judged",
        "messages": one.messages,
        "response": one.response,
        "finish_reason": "stop",
        "next_state": [{"role": "user", "content": "fine"}],
        "next_state_provenance": ["owner"],
        "next_turn_id": None,
        "feedback": [{"kind": "thumbs", "value": 1.0, "text": None, "created_at": said.created_at}],
        "votes": [{"score": 1, "raw": "+"}],
        "score": 1.0,
        "hint": "short",
        "hint_source": None,
        "detail": {"by": "votes"},
        "policy_version": 0,
        "token_versions": [0, 1],
        "prompt_tokens": 3,
        "completion_tokens": 2,
    }
    assert (rows[1]["turn_id"], rows[1]["prompt_tokens"], rows[1]["completion_tokens"]) == (bare.id, 7, None)
    assert [(row["judge"], row["sample"]) for row in explained] == [("rules", None), (None, None)]


def test_deleting_a_session_erases_all_of_it(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        kept = judged(tx)[0]
        gone = judged(tx, 2)
        turns.add_feedback(tx, thumbs(gone[0].id))
        home = gone[0].session_id
    with ledger.transaction() as tx:
        assert turns.delete_session(tx, home) == 2
        assert turns.get(tx, gone[0].id) is None
        assert turns.delete_session(tx, home) is None
    with ledger.reader() as tx:
        for table, left in ((schema.Session, 1), (Sample, 1), (Verdict, 1), (Feedback, 0)):
            assert tx.scalar(select(func.count()).select_from(table)) == left
        assert turns.get(tx, kept.id) is not None


def test_what_was_deleted_is_gone_from_the_disk(sqlite_ledger: Ledger) -> None:
    secret = "the-user-said-this"
    with sqlite_ledger.transaction() as tx:
        home = session(tx, secret)
        one = turns.add(tx, turn(home.id))
        turns.add_feedback(tx, Feedback(turn_id=one.id, kind="text", text=secret))
    files = [sqlite_ledger.path, sqlite_ledger.path.with_name("ledger.db-wal")]  # type: ignore[union-attr]
    assert any(secret.encode() in file.read_bytes() for file in files if file)
    with sqlite_ledger.transaction() as tx:
        turns.delete_session(tx, secret)
    assert sqlite_ledger.checkpoint()
    assert not any(secret.encode() in file.read_bytes() for file in files if file)


def test_a_log_that_another_process_reads_is_not_called_cleared(
    sqlite_ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHECKPOINT_WAIT_S", 0.0)
    with sqlite_ledger.transaction() as tx:
        session(tx, "the-user-said-this")
    other = Ledger.open(path)
    with other.reader() as reading:
        assert turns.find_session(reading, "the-user-said-this") is not None
        with sqlite_ledger.transaction() as tx:
            turns.delete_session(tx, "the-user-said-this")
        assert not sqlite_ledger.checkpoint()
    assert sqlite_ledger.checkpoint()
    assert path.with_name("ledger.db-wal").stat().st_size == 0
    other.close()
    with sqlite_ledger.writer_engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 10_000, "the connection is as it was"


def test_a_session_is_found_by_a_beginning_that_no_other_has(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        first, second = session(tx, "morning chat"), session(tx, "morning walk")
        bare = session(tx)
        assert turns.resolve_session(tx, "morning c") is first
        assert turns.resolve_session(tx, "morning walk") is second
        assert turns.resolve_session(tx, bare.id) is turns.resolve_session(tx, bare.id[8:]) is bare
        assert turns.resolve_session(tx, bare.id.removeprefix("session_")[:-1]) is bare
        assert turns.resolve_session(tx, "nobody") is turns.resolve_session(tx, "Morning c") is None
        assert turns.resolve_session(tx, "morning_c") is turns.resolve_session(tx, "%") is None
        assert turns.resolve_session(tx, "mor") is None, "too short to be sure"
        with pytest.raises(AmbiguousName, match="2 sessions begin with 'morning'"):
            turns.resolve_session(tx, "morning")


def test_a_name_that_several_owners_use_is_told_with_the_whole_ids(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        ids = [session(tx, "task-0", owner=owner, now=now).id for owner, now in (("a", 1.0), ("b", 2.0))]
        for name in ("task-0", "task"):
            with pytest.raises(UserError) as told:
                turns.resolve_session(tx, name)
            assert all(each in str(told.value) for each in ids)
        assert turns.resolve_session(tx, ids[0]) is turns.find_session(tx, "task-0", owner="a")


@given(st.sets(st.text(min_size=1, max_size=40), min_size=1, max_size=20))
def test_short_ids_are_beginnings_of_their_own(names: set[str]) -> None:
    short = turns.short_ids(names)
    assert set(short) == names and len(set(short.values())) == len(names)
    for name, beginning in short.items():
        assert name.startswith(beginning)
        if len(name) > 20:
            longer = [other for other in names if len(other) > 20 and other != name]
            assert not any(other.startswith(beginning) for other in longer)
