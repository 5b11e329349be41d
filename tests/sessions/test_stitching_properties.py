"""Random conversations, interleaved and disturbed, are stitched into exactly the right sessions and next states."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_clients import (
    BTW_SYSTEM,
    CONTINUE,
    FLUSH_PROMPT,
    FLUSH_TOOLS,
    HEARTBEAT_PROMPT,
    QUEUED,
    SUBAGENT_END,
    Gateway,
    OpenClaw,
    call,
    say,
)

from clawrl_trl.gateway.sessions.sessions import IncomingRequest, Placement, Sessions

FEW_TEXTS = ["go on", "thanks", "no, shorter", "   why?\n", "go on\n\nand on"]
FEW_REPLIES = ["ok", "Sure.\n", "  done", "ok\n\nok"]
ACTIONS = ["talk", "talk", "talk", "tools", "stop", "fail", "heartbeat", "btw", "flush", "event", "title"]


@dataclass
class Talk:
    """One conversation and what must come of it."""

    name: str
    client: OpenClaw
    shared_opening: bool
    session: str = ""
    awaiting: str | None = None
    cut: bool = False
    expected: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    flying: tuple[tuple[Placement, dict[str, Any]], str, list[str], list[str], str | None] | None = None
    opened: bool = False
    merging: bool = False

    def step(self, action: str, variant: int) -> None:
        """Finish the request under way, or start something new."""
        if self.flying is not None:
            self.land(variant)
        elif not self.opened:
            self.client.user("hello" if self.shared_opening else f"hello from {self.name}")
            risky = action in ("stop", "fail") and not self.shared_opening
            self.fly(action if risky or action == "tools" else "talk", [self.client.history[-1]["content"]], ["owner"])
            self.opened = True
        elif action in ("heartbeat", "btw", "flush", "title"):
            self.side(action, variant)
        elif action == "event":
            self.event(variant)
        else:
            self.client.user(FEW_TEXTS[variant % len(FEW_TEXTS)])
            self.fly(action, [self.client.history[-1]["content"].strip()], ["owner"])

    def fly(self, action: str, texts: list[str], provenance: list[str], history: Any = None) -> None:
        placed = self.client.again(history=history) if history else self.client.again()
        self.check_main(placed[0], texts, provenance)
        assert not self.client.gateway.is_retry(placed[0])
        self.flying = (placed, action, texts, provenance, None)

    def check_main(self, placement: Placement, texts: list[str], provenance: list[str]) -> None:
        assert placement.kind == "main"
        self.session = self.session or placement.session_id
        assert placement.session_id == self.session
        if self.awaiting is not None:
            assert [answer.turn_id for answer in placement.answered] == [self.awaiting]
            assert (placement.parent_id == self.awaiting) is not self.cut
            self.expected[self.awaiting] = (texts, provenance)
        else:
            assert placement.answered == []

    def land(self, variant: int) -> None:
        assert self.flying is not None
        placed, action, texts, provenance, _ = self.flying
        self.flying = None
        gateway = self.client.gateway
        if action == "fail":
            gateway.sessions.fail(placed[0])
            placed = self.client.again(history=self.requeued())
            self.check_main(placed[0], texts, provenance)
            assert gateway.is_retry(placed[0])
        if action == "stop":
            self.awaiting = gateway.answer(placed[0], placed[1], say(f"I was about to {variant}"), aborted=True)
            self.cut = True
            return
        self.cut = False
        opening = not any(message["role"] == "assistant" for message in self.client.history)
        mark = f" ({self.name})" if opening else ""
        if action == "tools":
            count = 1 + variant % 3
            calls = [(f"call_{n}", "read", {"path": f"{n}", "n": n * 1.0, "x": None}) for n in range(count)]
            reply = call(*calls, text=[None, "", f"Reading.{mark}"][variant % 3] if not opening else f"Reading.{mark}")
            self.awaiting = self.client.receive(placed, reply)
            results = [f"result {n} {variant}\n" for n in range(count)]
            for n, result in enumerate(results):
                self.client.tool(f"call_{n}", result)
            self.fly("fail" if variant % 4 == 0 else "talk", results, ["tool"] * count)
        else:
            self.awaiting = self.client.receive(placed, FEW_REPLIES[variant % len(FEW_REPLIES)] + mark)
            if self.merging:
                merged = (
                    self.client.history[-2]["content"].strip() + "\n\n" + self.client.history[-1]["content"].strip()
                )
                self.client.history[-2:] = [say(merged)]
        self.merging = False

    def requeued(self) -> list[dict[str, Any]]:
        history = self.client.history
        if history[-1]["role"] == "user":
            return [*history[:-1], {"role": "user", "content": f"{QUEUED}\n{history[-1]['content']}\n\n{CONTINUE}"}]
        return [*history, {"role": "user", "content": CONTINUE}]

    def event(self, variant: int) -> None:
        last = self.client.history[-1]
        if last["role"] != "assistant" or "tool_calls" in last:
            return
        text = SUBAGENT_END.format(result=f"result {variant}")
        self.fly("talk", [text], ["event"], [*self.client.history, {"role": "user", "content": text}])
        self.merging = last["content"] != "Your disk is full."

    def side(self, action: str, variant: int) -> None:
        client, history = self.client, self.client.history
        if action == "title":
            body: dict[str, Any] = {
                "messages": [{"role": "system", "content": "Generate a title for this chat."}, *history[:1]]
            }
            placed = client.gateway.ask(
                {"messages": [{k: m[k] for k in ("role", "content")} for m in body["messages"]]}
            )
            assert placed.session_id != self.session
        elif action == "btw":
            bare = [{key: value for key, value in m.items() if key != "minute"} for m in history]
            body = {
                "messages": [{"role": "system", "content": BTW_SYSTEM}, *bare, {"role": "user", "content": "why?"}]
            }
            placed = client.gateway.ask(body)
        elif action == "flush":
            prompt = {"role": "user", "content": FLUSH_PROMPT}
            placed, body = client.again(history=[*history, prompt], tools=FLUSH_TOOLS)
        else:
            placed, body = client.again(history=[*history, {"role": "user", "content": HEARTBEAT_PROMPT}])
        assert placed.kind == "side" and placed.answered == []
        anchored = any(message["role"] == "assistant" for message in history)
        if action != "title" and (anchored or (client.runtime and action != "btw")):
            assert placed.session_id == self.session
        client.gateway.answer(placed, body, say("NO_REPLY"))
        if action == "heartbeat" and anchored and variant % 2 and history[-1]["role"] == "assistant":
            history += [{"role": "user", "content": "[OpenClaw heartbeat poll]"}, say("Your disk is full.")]


def _talks(gateway: Gateway, flavours: list[tuple[bool, bool]], owners: bool = False) -> list[Talk]:
    return [
        Talk(
            f"client {n}",
            OpenClaw(
                gateway,
                runtime=runtime,
                session=f"0f0e0d0c-1111-4222-8333-{n:012d}",
                owner=f"owner {n}" if owners else "local",
            ),
            shared,
        )
        for n, (runtime, shared) in enumerate(flavours)
    ]


flavours = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5)
scripts = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=60)
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _play(talks: list[Talk], script: list[tuple[int, str, int]]) -> None:
    for number, action, variant in script:
        talk = talks[number % len(talks)]
        if action == "heartbeat" and talk.flying is None and not talk.opened:
            action = "talk"
        talk.step(action, variant)


@relaxed
@given(flavours, scripts)
def test_interleaved_and_disturbed_conversations_are_stitched_exactly(
    kinds: list[tuple[bool, bool]], script: list[tuple[int, str, int]]
) -> None:
    gateway = Gateway()
    talks = _talks(gateway, kinds)
    _play(talks, script)
    sessions = [talk.session for talk in talks if talk.session]
    assert len(set(sessions)) == len(sessions)
    expected = {turn: given for talk in talks for turn, given in talk.expected.items() if turn in gateway.next_states}
    flying = {answer.turn_id for talk in talks if talk.flying for answer in talk.flying[0][0].answered}
    assert set(gateway.next_states) | flying >= {turn for talk in talks for turn in talk.expected}
    assert {
        turn: (gateway.texts_after(turn), gateway.next_states[turn][1]) for turn in gateway.next_states
    } == expected


@relaxed
@given(scripts)
def test_owners_never_join(script: list[tuple[int, str, int]]) -> None:
    gateway = Gateway()
    talks = _talks(gateway, [(True, True), (False, True), (True, True), (False, True)], owners=True)
    for talk in talks:
        talk.client.session = "0f0e0d0c-1111-4222-8333-000000000000"
        talk.name = "the same"
    for number, action, variant in script:
        if action not in ("btw", "title"):
            talks[number % 4].step(action if talks[number % 4].opened else "talk", variant)
    sessions = [talk.session for talk in talks if talk.session]
    assert len(set(sessions)) == len(sessions)


class Recorder(Gateway):
    """Keeps what was said to the index, to say it again."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[tuple[Any, ...]] = []
        inner, script = self.sessions, self.script

        class Taped(Sessions):
            def place(self, request: IncomingRequest) -> list[Placement]:
                placements = inner.place(request)
                script.append(("place", request, placements))
                return placements

            def enter_reply(self, placement: Placement, *rest: Any, **named: Any) -> None:
                script.append(("reply", placement, rest, named))
                inner.enter_reply(placement, *rest, **named)

            def fail(self, placement: Placement) -> None:
                script.append(("fail", placement))
                inner.fail(placement)

        self.sessions = Taped()
        self.sessions._index = inner._index


@settings(max_examples=40, deadline=None)
@given(flavours, scripts)
def test_the_same_requests_are_placed_the_same(
    kinds: list[tuple[bool, bool]], script: list[tuple[int, str, int]]
) -> None:
    recorder = Recorder()
    _play(_talks(recorder, kinds), script)
    again = Sessions(now=lambda: recorder.clock)
    for entry in recorder.script:
        if entry[0] == "place":
            assert again.place(entry[1]) == entry[2]
        elif entry[0] == "reply":
            again.enter_reply(entry[1], *entry[2], **entry[3])
        else:
            again.fail(entry[1])


@settings(max_examples=40, deadline=None)
@given(scripts, st.integers(1, 4), st.integers(2, 12), st.integers(1, 3))
def test_the_index_stays_within_its_bounds(
    script: list[tuple[int, str, int]], limit: int, entries: int, turns: int
) -> None:
    gateway = Gateway(limit=limit, entries=entries, turns_per_session=turns)
    for number, action, variant in script:
        client = OpenClaw(gateway, runtime=bool(variant % 2), session=f"session {number}")
        for step in range(1 + variant % 4):
            placed = client.send(f"{action} {step}")
            client.receive(placed, f"reply {step}")
        index = gateway.sessions._index
        assert len(gateway.sessions) <= limit
        assert index.entries() <= max(entries, 2 * turns)
        held = sum(len(conversation.replies) + len(conversation.requests) for conversation in index)
        tables = (index._replies, index._requests, index._unanswered)
        assert held == index.entries()
        assert all(entries for table in tables for entries in table.values())
        assert sum(map(len, index._requests.values())) == sum(len(conversation.requests) for conversation in index)
        assert {id(reply) for replies in index._replies.values() for reply in replies} == {
            id(reply) for conversation in index for reply in conversation.replies
        }
