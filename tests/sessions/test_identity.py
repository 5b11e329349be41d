"""The ids that requests carry: where they are found, what they mean, and what is never joined."""

from typing import Any

import pytest
from session_clients import Gateway, OpenClaw, Plain, call, say

from clawrl_trl.gateway.sessions.identity import strip_identity

UUID = "0f0e0d0c-1111-4222-8333-444455556666"


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.mark.parametrize(
    ("headers", "extra", "path", "source", "name"),
    [
        ({"x-session-id": "a", "x-session-affinity": "b"}, {"session_id": "c"}, "d", "header:x-session-id", "a"),
        ({"x-session-affinity": "b", "session_id": "c"}, {"session_id": "d"}, "e", "header:x-session-affinity", "b"),
        ({"session_id": "c"}, {"session_id": "d"}, "e", "header:session_id", "c"),
        ({}, {"session_id": "d", "prompt_cache_key": "e"}, "f", "body:session_id", "d"),
        ({}, {"session_id": 7}, None, "body:session_id", "7"),
        ({}, {"prompt_cache_key": "e", "metadata": {"session_id": "f"}}, "g", "body:prompt_cache_key", "e"),
        ({}, {"metadata": {"session_id": "f"}}, "g", "body:metadata.session_id", "f"),
        ({}, {}, "g", "url", "g"),
        ({"x-session-id": "  "}, {"session_id": None, "metadata": "x"}, None, "inferred", None),
    ],
)
def test_ids_are_found_in_order(
    gateway: Gateway,
    headers: dict[str, str],
    extra: dict[str, Any],
    path: str | None,
    source: str,
    name: str | None,
) -> None:
    placed, _ = Plain(gateway, headers=headers, extra=extra, path=path).chat("hello", "Hi.")
    assert (placed.identity_source, placed.external_id) == (source, name)


def test_an_id_meant_for_us_beats_the_runtime_line(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=True)
    body = client.body(history=[{"role": "user", "content": "hello"}])
    assert gateway.ask(body).external_id == client.session
    assert gateway.ask(body, headers={"x-session-id": "mine"}).external_id == "mine"


def test_the_runtime_line_counts_in_the_first_user_message_only(gateway: Gateway) -> None:
    client = Plain(gateway)
    client.chat("hello", "Hi.")
    placed, _ = client.chat(f"what is this?\n\nRuntime: agent=main | session=x | sessionId={UUID} | y", "A line.")
    assert placed.identity_source == "inferred"
    body = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "tool", "content": f"Runtime: agent=x | sessionId={UUID}"},
        ]
    }
    assert gateway.ask(body).identity_source == "inferred"


def test_a_counter_of_compactions_is_stripped_and_other_numbers_are_not(gateway: Gateway) -> None:
    def ask(name: str) -> tuple[str | None, str]:
        placed = gateway.ask({"messages": [{"role": "user", "content": "x"}]}, headers={"x-session-id": name})
        return placed.external_id, placed.session_id

    assert ask(f"{UUID}:0") == ask(f"{UUID}:12") == ask(UUID)
    assert ask(UUID)[0] == UUID
    assert ask("room:1")[0] == "room:1" and ask("room:1")[1] != ask("room:2")[1]


def test_the_same_id_of_two_owners_is_two_sessions(gateway: Gateway) -> None:
    one = Plain(gateway, owner="a", headers={"x-session-id": "s"})
    two = Plain(gateway, owner="b", headers={"x-session-id": "s"})
    first, turn = one.chat("hello", "Hi.")
    second, _ = two.chat("hello", "Hi.")
    assert first.session_id != second.session_id
    two.chat("more", "Sure.")
    assert gateway.texts_after(turn) is None


def test_named_sessions_that_say_the_same_keep_their_own_turns(gateway: Gateway) -> None:
    clients = [Plain(gateway, headers={"x-session-id": name}) for name in "ab"]
    turns = [client.chat("hello", "Hi.")[1] for client in clients]
    for client, turn in zip(clients, turns, strict=True):
        placed, _ = client.chat(f"more for {turn}", "Sure.")
        assert placed.parent_id == turn and [answer.turn_id for answer in placed.answered] == [turn]


def test_a_client_without_an_id_goes_on_with_a_session_without_one(gateway: Gateway) -> None:
    plain, named = Plain(gateway), Plain(gateway, headers={"x-session-id": "s"})
    first, one = plain.chat("hello", "Hi.")
    named.chat("hello", "Hi.")
    after, _ = plain.chat("more", "Sure.")
    assert after.session_id == first.session_id and after.parent_id == one


def test_a_named_session_keeps_its_id_when_the_index_forgot_it(gateway: Gateway) -> None:
    client = Plain(gateway, headers={"x-session-id": "s"})
    first, _ = client.chat("hello", "Hi.")
    gateway.sessions.forget(first.session_id)
    assert len(gateway.sessions) == 0
    assert client.chat("more", "Sure.")[0].session_id == first.session_id


def test_a_client_that_sends_only_what_is_new(gateway: Gateway) -> None:
    headers = {"x-session-id": "s"}

    def send(*messages: dict[str, Any], reply: dict[str, Any]) -> str:
        body = {"messages": [{"role": "system", "content": "Be kind."}, *messages]}
        placed = gateway.ask(body, headers=headers)
        assert placed.kind == "main"
        return gateway.answer(placed, body, reply)

    one = send({"role": "user", "content": "read both"}, reply=call(("a", "read", {}), ("b", "read", {})))
    results = [{"role": "tool", "tool_call_id": name, "content": f"content {name}"} for name in "ab"]
    two = send(*results, reply=say("Done."))
    send({"role": "user", "content": "thanks"}, reply=say("Welcome."))
    assert gateway.next_states[one] == (results, ["tool", "tool"])
    assert gateway.next_states[two] == ([{"role": "user", "content": "thanks"}], ["owner"])


def test_a_client_that_sends_only_what_is_new_may_repeat_itself(gateway: Gateway) -> None:
    headers = {"x-session-id": "s"}
    turns = []
    for text in ["hello", "go on", "go on", "hello"]:
        body = {"messages": [{"role": "user", "content": text}]}
        turns.append(gateway.answer(gateway.ask(body, headers=headers), body, say("...")))
    assert [gateway.texts_after(turn) for turn in turns] == [["go on"], ["go on"], ["hello"], None]
    lost = gateway.ask(body, headers=headers)
    gateway.sessions.fail(lost)
    again = gateway.ask(body, headers=headers)
    assert gateway.is_retry(again) and again.answered == lost.answered


def test_with_an_id_a_reply_is_known_by_its_place(gateway: Gateway) -> None:
    client = Plain(gateway, headers={"x-session-id": "s"})
    _, one = client.chat("hello", "**Hi.**")
    client.messages[-1] = say("Hi.")
    client.chat("thanks", "Welcome.")
    assert gateway.texts_after(one) == ["thanks"]


def test_with_an_id_what_follows_a_stopped_reply_is_its_next_state_where_the_client_shows_it(gateway: Gateway) -> None:
    client = Plain(gateway, headers={"x-session-id": "s"})
    placed = client.send("write a book")
    turn = gateway.answer(placed[0], placed[1], say("Chapter"), aborted=True)
    after, _ = client.chat("no, a poem", "Roses.")
    assert after.session_id == placed[0].session_id and gateway.texts_after(turn) == ["no, a poem"]
    headers = {"x-session-id": "newest only"}
    body = {"messages": [{"role": "user", "content": "write a book"}]}
    cut = gateway.answer(gateway.ask(body, headers=headers), body, say("Chapter"), aborted=True)
    assert not gateway.ask({"messages": [{"role": "user", "content": "a poem"}]}, headers=headers).answered
    assert gateway.texts_after(cut) is None


def test_with_an_id_going_back_to_the_opening_is_no_feedback(gateway: Gateway) -> None:
    client = Plain(gateway, headers={"x-session-id": "s"})
    client.chat("hello", "Hi.")
    _, two = client.chat("more", "Sure.")
    client.messages[1:] = []
    placed, _ = client.chat("something else", "Fine.")
    assert placed.answered == [] and gateway.texts_after(two) is None


def test_the_clients_session_name_tells_a_side_run(gateway: Gateway) -> None:
    job = OpenClaw(gateway, runtime=True, session="cron-run-1", key="agent:main:cron:5:run:1")
    assert job.chat("tidy up", "Tidied.")[0].kind == "side"


def test_a_cache_key_that_covers_several_chats_gives_no_false_feedback(gateway: Gateway) -> None:
    one, two = (Plain(gateway, extra={"prompt_cache_key": "app"}) for _ in range(2))
    first, turn = one.chat("hello", "Hi.")
    second, _ = two.chat("what is 2+2?", "4")
    assert first.session_id == second.session_id and not second.answered
    one.chat("thanks", "Welcome.")
    assert gateway.texts_after(turn) == ["thanks"]


def test_the_engine_does_not_see_our_fields() -> None:
    body = {"model": "m", "session_id": "s", "turn_type": "main", "session_done": True, "prompt_cache_key": "k"}
    assert strip_identity(body) == {"model": "m", "prompt_cache_key": "k"}


@pytest.mark.parametrize(
    ("headers", "extra", "kind"),
    [
        ({"x-turn-type": "side"}, {}, "side"),
        ({"x-turn-type": " Main "}, {"turn_type": "side"}, "main"),
        ({}, {"turn_type": "side"}, "side"),
        ({"x-turn-type": "other"}, {}, "main"),
        ({}, {"turn_type": None}, "main"),
    ],
)
def test_a_stated_kind_wins(gateway: Gateway, headers: dict[str, str], extra: dict[str, Any], kind: str) -> None:
    placed, _ = Plain(gateway, headers=headers, extra=extra).chat("hello", "Hi.")
    assert placed.kind == kind and placed.kind_reason


def test_a_stated_main_beats_what_a_message_looks_like(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "Read HEARTBEAT.md if it exists."}]}
    assert gateway.ask(body).kind == "side"
    assert gateway.ask(body, headers={"x-turn-type": "main"}).kind == "main"


def test_an_exchange_stated_as_side_is_not_feedback(gateway: Gateway) -> None:
    client = Plain(gateway)
    main, one = client.chat("hello", "Hi.")
    client.headers = {"x-turn-type": "side"}
    side, _ = client.chat("(a reminder fires)", "Noted.")
    client.headers = {"x-turn-type": "main"}
    after, _ = client.chat("thanks", "Welcome.")
    assert main.session_id == side.session_id == after.session_id
    assert side.kind == "side" and not side.answered
    assert gateway.texts_after(one) == ["thanks"]


def test_a_raw_completion_is_a_side_request_unless_stated(gateway: Gateway) -> None:
    body = {"prompt": "Once upon", "messages": [{"role": "user", "content": "Once upon"}]}
    assert gateway.ask(body).kind == "side"
    # One word for each message that the ledger keeps, and it keeps one for a prompt of token ids too.
    assert gateway.ask({"prompt": [1, 2]}).provenance == ["owner"]
    assert gateway.ask(body | {"turn_type": "main"}).kind == "main"
