"""The index after a restart, from a real ledger; and its time limit."""

import secrets
from pathlib import Path
from typing import Any

import pytest
from session_clients import FLUSH_TOOLS, Gateway, OpenClaw, Plain, call, say

from clawrl_trl.gateway.sampling import STOPPED
from clawrl_trl.gateway.sessions.sessions import Placement, Sessions
from clawrl_trl.ledger import Ledger, schema, turns

Message = dict[str, Any]


class LedgerGateway(Gateway):
    """A gateway that writes what it answers, so that it can be restarted."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def answer(
        self,
        placement: Placement,
        body: Message,
        reply: Message,
        *,
        aborted: bool = False,
        stopped: bool | None = None,
    ) -> str:
        turn_id = super().answer(placement, body, reply, aborted=aborted, stopped=stopped)
        with self.ledger.transaction() as tx:
            turns.get_or_create_session(
                tx,
                owner=placement.owner,
                external_id=placement.external_id,
                identity_source=placement.identity_source,
                now=self.clock,
                session_id=placement.session_id,
            )
            turn = schema.Turn(
                id=turn_id,
                session_id=placement.session_id,
                parent_id=placement.parent_id,
                completion_id=f"chatcmpl-{turn_id}",
                kind=placement.kind,
                kind_reason=placement.kind_reason,
                messages=body["messages"],
                tools=body.get("tools"),
                provenance=placement.provenance,
                response=reply,
                finish_reason="abort" if aborted else "stop",
                sampling={STOPPED: True} if (aborted if stopped is None else stopped) else {},
                created_at=self.clock,
            )
            turns.add(tx, turn)
            for answer in placement.answered:
                turns.set_next_state(tx, answer.turn_id, answer.messages, answer.provenance, turn_id, self.clock)
        return turn_id

    def restart(self, **bounds: int) -> None:
        self.sessions = Sessions(now=lambda: self.clock)
        with self.ledger.reader() as tx:
            self.sessions.load(tx, **bounds)


@pytest.fixture
def gateway(tmp_path: Path) -> Any:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield LedgerGateway(ledger)
    ledger.close()


@pytest.mark.parametrize("runtime", [True, False])
def test_conversations_go_on_after_a_restart(gateway: LedgerGateway, runtime: bool) -> None:
    one = OpenClaw(gateway, runtime=runtime)
    two = OpenClaw(gateway, runtime=runtime, session="1f0e0d0c-1111-4222-8333-444455556666", owner="b")
    first, a = one.chat("hello", call(("call_1", "exec", {"cmd": "ls"})))
    other, b = two.chat("hello", "Hi.")
    gateway.restart()
    one.tool("call_1", "a.txt")
    placed = one.again()
    c = one.receive(placed, "One file.")
    assert placed[0].session_id == first.session_id and placed[0].parent_id == a
    assert two.chat("more", "Sure.")[0].session_id == other.session_id
    gateway.restart()
    assert one.again()[0].answered == []
    one.chat("thanks", "Welcome.")
    with gateway.ledger.reader() as tx:
        states = {turn.id: turn.next_state for turn in turns.of_session(tx, first.session_id)}
    assert [message["content"] for message in states[a]] == ["a.txt"]
    assert [message["content"] for message in states[c]] == ["thanks"]
    assert gateway.texts_after(b) == ["more"]


def test_a_cut_reply_is_still_retried_after_a_restart_but_not_for_ever(gateway: LedgerGateway) -> None:
    client = Plain(gateway)
    placed = client.send("hello")
    cut = gateway.answer(placed[0], placed[1], say("He"), aborted=True)
    gateway.restart()
    again = client.again()[0]
    assert gateway.is_retry(again) and gateway.retried_turn(again) == cut
    gateway.clock += 10_000
    gateway.restart()
    assert client.again()[0].session_id != placed[0].session_id


@pytest.mark.parametrize("by_the_user", [True, False])
def test_after_a_restart_it_is_known_whether_the_user_stopped_a_reply(
    gateway: LedgerGateway, by_the_user: bool
) -> None:
    client = OpenClaw(gateway, runtime=False)
    client.chat("hello", "Hi.")
    placed = client.send("write a book")
    cut = gateway.answer(placed[0], placed[1], say("Chapter 1. It"), aborted=True, stopped=by_the_user)
    gateway.restart()
    after, _ = client.chat("a poem is enough", "Roses.")
    assert after.session_id == placed[0].session_id
    assert gateway.texts_after(cut) == (["a poem is enough"] if by_the_user else None)


def test_a_side_exchange_is_remembered_as_one(gateway: LedgerGateway) -> None:
    client = Plain(gateway)
    _, one = client.chat("hello", "Hi.")
    client.headers = {"x-turn-type": "side"}
    client.chat("(a reminder fires)", "Noted.")
    client.headers = {}
    gateway.restart()
    client.chat("thanks", "Welcome.")
    assert gateway.texts_after(one) == ["thanks"]


def test_after_a_restart_an_answered_reply_stays_answered_and_a_flush_a_flush(gateway: LedgerGateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    _, one = client.chat("hello", "Hi.")
    _, two = client.chat("more", "Sure.")
    client.history.pop()
    gateway.restart()
    again = client.again()
    assert again[0].answered == [] and again[0].parent_id == one and two != one
    client.receive(again, "Of course.")
    fork = [*client.history, {"role": "user", "content": "Write down what matters."}]
    client.receive(client.again(history=fork, tools=FLUSH_TOOLS), "NO_REPLY", keep=False)
    gateway.restart()
    flush = client.again(history=fork, tools=FLUSH_TOOLS)
    assert flush[0].kind == "side" and flush[0].session_id == again[0].session_id


def test_a_silent_conversation_is_forgotten_in_time() -> None:
    gateway = Gateway(ttl_s=100.0)
    client = Plain(gateway)
    first, _ = client.chat("hello", "Hi.")
    gateway.clock += 90
    assert client.chat("more", "Sure.")[0].session_id == first.session_id
    gateway.clock += 102
    assert client.chat("and more", "Sure.")[0].session_id != first.session_id
    assert len(gateway.sessions) == 1


def test_the_longest_silent_conversation_makes_room() -> None:
    gateway = Gateway(limit=2)
    one, two = Plain(gateway), Plain(gateway)
    first, _ = one.chat("hello from one", "Hi one.")
    second, _ = two.chat("hello from two", "Hi two.")
    one.chat("more", "Sure.")
    Plain(gateway).chat("hello from three", "Hi three.")
    assert one.chat("and more", "Sure.")[0].session_id == first.session_id
    assert two.chat("more", "Sure.")[0].session_id != second.session_id


def test_the_named_owner_is_remembered(gateway: LedgerGateway) -> None:
    headers = {"x-session-id": "s"}
    body: Message = {"messages": [{"role": "user", "name": "ann", "content": "What is 5 plus 7?"}]}
    gateway.answer(gateway.ask(body, headers=headers), body, say("12"))
    gateway.restart()
    body = {"messages": [{"role": "user", "name": "bob", "content": "and 6 plus 7?"}]}
    assert gateway.ask(body, headers=headers).provenance == ["other"]


def test_a_session_that_is_done_is_not_read_again(gateway: LedgerGateway) -> None:
    over, _ = Plain(gateway).chat("hello", "Hi.")
    goes_on, _ = Plain(gateway).chat("good day", "Good day.")
    with gateway.ledger.transaction() as tx:
        tx.get_one(schema.Session, over.session_id).done = True
    gateway.restart()
    assert [conversation.id for conversation in gateway.sessions._index] == [goes_on.session_id]


def test_a_start_reads_only_so_much_and_the_newest_of_each_session(
    gateway: LedgerGateway, caplog: pytest.LogCaptureFixture
) -> None:
    quiet, loud = Plain(gateway), Plain(gateway)
    for number in range(5):
        loud.chat(f"{number}: " + secrets.token_hex(5_000), f"Reply {number}.")
    quiet.chat("good day", "Good day.")
    gateway.restart(budget=20_000)
    replies = {len(conversation.replies) for conversation in gateway.sessions._index}
    assert len(gateway.sessions) == 2 and replies == {1}
    assert "4 of the newest 6 turns are too much" in caplog.text
    caplog.clear()
    assert loud.chat("more", "Sure.")[0].answered and quiet.chat("more", "Sure.")[0].answered
    gateway.restart()
    assert {len(conversation.replies) for conversation in gateway.sessions._index} == {2, 6}
    assert not caplog.text
