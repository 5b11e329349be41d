"""Clients without any habits of their own: no header, the whole history each time."""

from typing import Any

import pytest
from session_clients import TITLE_SYSTEM, Gateway, Plain, call, say

from clawrl_trl.gateway.sessions.match import RETRY_S


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.mark.parametrize(
    "system",
    [
        None,
        "You are a helpful assistant.",
        "You are a helpful assistant. Summarize the conversation when you are asked to.",
        "You help a writer. He works on a book with a title and on a chat program.",
        "You are a teacher. Grade the homework and give the reason.",
        "You are a news desk. Write a title for the following text.",
        "You are a clerk. Return the label of each message: spam or ham. Give your name in every chat.",
        "You are an assistant that summarizes long papers.",
        "You are a name expert. Explain where names come from; never chat about other things.",
    ],
)
def test_a_chat_without_headers_is_main_from_the_first_request(gateway: Gateway, system: str | None) -> None:
    client = Plain(gateway, messages=[{"role": "system", "content": system}] if system else [])
    placed, turns = [], []
    for text in ("What is 2 + 3?", "write it without bold, please", "thanks"):
        placement, turn = client.chat(text, f"reply to {text}")
        placed.append(placement)
        turns.append(turn)
    assert {(p.kind, p.session_id, p.identity_source) for p in placed} == {("main", placed[0].session_id, "inferred")}
    assert [gateway.texts_after(turn) for turn in turns] == [["write it without bold, please"], ["thanks"], None]


@pytest.mark.parametrize(
    ("system", "text"),
    [
        (TITLE_SYSTEM, "plan a trip"),
        ("Your task is to create a concise title for the following conversation.", "plan a trip"),
        ("You are a title generator. Answer with the title only.", "plan a trip"),
        ("Summarize the conversation below in three sentences.", "User: hi"),
        (None, "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"),
        (None, "Provide a concise, 5-word-or-less title for the conversation, using title case."),
    ],
)
def test_one_shots_of_chat_pages_are_side(gateway: Gateway, system: str | None, text: str) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    placed = gateway.ask({"messages": [*messages, {"role": "user", "content": text}]})
    assert placed.kind == "side" and placed.kind_reason


@pytest.mark.parametrize(
    "text",
    [
        "### Task:\nFix the failing test in this repository.",
        "<summary>Click</summary> is how I fold text in HTML. Why does it not work?",
        "Write a heartbeat check for my server, please.",
        "Continue the current task, but in French.",
        "Please generate a title for my essay about rivers.",
        "What does HEARTBEAT.md say?",
    ],
)
def test_words_of_an_owner_that_only_look_like_a_clients(gateway: Gateway, text: str) -> None:
    client = Plain(gateway)
    first, one = client.chat(text, "Sure.")
    second, two = client.chat(text, "Sure, again.")
    client.chat("thanks", "Welcome.")
    assert first.kind == second.kind == "main" and second.provenance[-1] == "owner"
    assert gateway.next_states[one] == ([{"role": "user", "content": text}], ["owner"])
    assert gateway.texts_after(two) == ["thanks"]


def test_two_clients_with_the_same_first_message_stay_two(gateway: Gateway) -> None:
    one, two = Plain(gateway), Plain(gateway)
    flying = one.send("hello")
    other = two.send("hello")
    assert flying[0].session_id != other[0].session_id
    one.receive(flying, "Hi one.")
    two.receive(other, "Hi two.")
    third = Plain(gateway).send("hello")
    assert third[0].session_id not in (flying[0].session_id, other[0].session_id) and not gateway.is_retry(third[0])
    assert two.chat("x", "y")[0].session_id == other[0].session_id
    assert one.chat("x", "y")[0].session_id == flying[0].session_id


def test_of_two_lookalikes_the_one_whose_request_failed_is_free_again(gateway: Gateway) -> None:
    one, two, three = (Plain(gateway) for _ in range(3))
    opened = {one.chat("hello", "Hi.")[0].session_id, two.chat("hello", "Hi.")[0].session_id}
    three.messages = [dict(message) for message in one.messages]
    first, _ = two.chat("x", "y")
    lost = one.send("z")
    assert {first.session_id, lost[0].session_id} == opened
    gateway.sessions.fail(lost[0])
    reworded = three.send("z, please")
    assert reworded[0].session_id == lost[0].session_id and reworded[0].answered


def test_a_one_shot_of_unknown_wording_does_not_take_over_the_conversation(gateway: Gateway) -> None:
    client = Plain(gateway, extra={"tools": [{"type": "function", "function": {"name": "f"}}]})
    body = {"messages": [{"role": "system", "content": "Three words."}, {"role": "user", "content": "plan a trip"}]}
    title = gateway.ask(body)
    main = client.send("plan a trip")
    gateway.answer(main[0], main[1], say("Where to? I could"))
    gateway.answer(title, body, say("Trip planning"))
    assert title.session_id != main[0].session_id
    assert client.send("to Rome")[0].session_id == main[0].session_id


def test_another_owner_does_not_join_by_showing_the_same_history(gateway: Gateway) -> None:
    one = Plain(gateway, owner="a")
    first, turn = one.chat("hello", "Hi.")
    thief = Plain(gateway, owner="b", messages=[dict(message) for message in one.messages])
    placed = thief.send("more")
    assert placed[0].session_id != first.session_id
    assert placed[0].parent_id is None and placed[0].answered == []
    assert gateway.texts_after(turn) is None


def test_what_looks_like_a_one_shot_is_main_once_it_goes_on(gateway: Gateway) -> None:
    client = Plain(gateway, messages=[{"role": "system", "content": "Write a title for each chat you are shown."}])
    first, _ = client.chat("plan a trip", "Trip")
    second, one = client.chat("longer, please", "A trip to Rome")
    client.chat("thanks", "Welcome")
    assert first.kind == "side" and second.kind == "main" and gateway.texts_after(one) == ["thanks"]


def test_a_client_that_begins_like_another_with_an_answer_of_its_own_is_new(gateway: Gateway) -> None:
    first, one = Plain(gateway).chat("hello", "Hi.")
    other = Plain(gateway, messages=[{"role": "user", "content": "hello"}, say("(another model) Hey.")])
    assert other.send("how are you?")[0].session_id != first.session_id
    assert gateway.texts_after(one) is None


def test_going_on_from_an_answered_opening_without_the_answer_is_new(gateway: Gateway) -> None:
    client = Plain(gateway)
    first, _ = client.chat("hello", "Hi.")
    client.chat("how are you?", "Fine.")
    other = Plain(gateway, messages=[{"role": "user", "content": "hello"}])
    assert other.send("anybody there?")[0].session_id != first.session_id


@pytest.mark.parametrize(
    ("outcome", "longer"),
    [("open", "hello\nthere"), ("failed", "hello, you"), ("open", "hello you"), ("done", "hello\nthere")],
)
def test_a_message_that_begins_with_anothers_words_is_new(gateway: Gateway, outcome: str, longer: str) -> None:
    lost = Plain(gateway).send("hello")
    if outcome == "done":
        gateway.answer(lost[0], lost[1], say("Hi."))
    if outcome == "failed":
        gateway.sessions.fail(lost[0])
    assert Plain(gateway).send(longer)[0].session_id != lost[0].session_id


def test_a_lost_message_in_front_of_the_next_goes_on_with_its_session(gateway: Gateway) -> None:
    client = Plain(gateway)
    lost = client.send("first half")
    gateway.sessions.fail(lost[0])
    client.messages[0] = {"role": "user", "content": "first half\n\nsecond half"}
    folded = client.again()
    one = client.receive(folded, "Both.")
    assert folded[0].session_id == lost[0].session_id and not gateway.is_retry(folded[0])
    client.messages[0] = {"role": "user", "content": "second half"}
    assert client.chat("fine", "Good.")[0].session_id == lost[0].session_id
    assert gateway.texts_after(one) == ["fine"]


@pytest.mark.parametrize("cut", [True, False])
def test_the_same_request_after_a_failure_is_a_retry(gateway: Gateway, cut: bool) -> None:
    client = Plain(gateway)
    first = client.send("hello")
    if cut:
        gateway.answer(first[0], first[1], say("He"), aborted=True)
    else:
        gateway.sessions.fail(first[0])
    again = client.again()
    assert again[0].session_id == first[0].session_id and gateway.is_retry(again[0]) and not again[0].answered
    one = client.receive(again, "Hello!")
    assert client.chat("thanks", "Welcome.")[0].session_id == first[0].session_id
    assert gateway.texts_after(one) == ["thanks"]


def test_a_failure_long_ago_or_in_another_setting_is_no_retry(gateway: Gateway) -> None:
    client = Plain(gateway)
    first = client.send("hello")
    gateway.sessions.fail(first[0])
    other = Plain(gateway, extra={"tools": [{"type": "function", "function": {"name": "f"}}]}).send("hello")
    assert other[0].session_id != first[0].session_id and not gateway.is_retry(other[0])
    gateway.clock += RETRY_S + 1
    late = client.again()
    assert late[0].session_id != first[0].session_id and not gateway.is_retry(late[0])


def test_a_failed_request_gives_its_next_state_when_it_is_repeated(gateway: Gateway) -> None:
    client = Plain(gateway)
    _, one = client.chat("hello", "Hi.")
    lost = client.send("more")
    assert [answer.turn_id for answer in lost[0].answered] == [one]
    gateway.sessions.fail(lost[0])
    again = client.again()
    assert gateway.is_retry(again[0]) and [answer.turn_id for answer in again[0].answered] == [one]
    client.receive(again, "Sure.")
    assert client.again()[0].answered == []


def test_a_regenerated_reply_is_neither_retry_nor_feedback(gateway: Gateway) -> None:
    client = Plain(gateway)
    main, one = client.chat("hello", "Hi.")
    _, two = client.chat("tell a joke", "Knock knock.")
    client.messages.pop()
    again = client.again()
    three = client.receive(again, "A horse walks into a bar.")
    assert again[0].session_id == main.session_id and again[0].kind == "main"
    assert not gateway.is_retry(again[0]) and again[0].answered == [] and again[0].parent_id == one
    client.chat("haha", "Glad.")
    assert gateway.texts_after(two) is None and gateway.texts_after(three) == ["haha"]
    assert gateway.texts_after(one) == ["tell a joke"]


def test_an_edited_earlier_message_is_a_branch_and_not_feedback(gateway: Gateway) -> None:
    client = Plain(gateway)
    main, one = client.chat("hello", "Hi.")
    _, two = client.chat("tell a joke", "Knock knock.")
    client.messages[-2:] = []
    branch, three = client.chat("tell a story", "Once upon a time.")
    assert branch.session_id == main.session_id and not branch.answered and branch.parent_id == one
    client.chat("go on", "...")
    assert gateway.texts_after(one) == ["tell a joke"] and gateway.texts_after(two) is None
    assert gateway.texts_after(three) == ["go on"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ('{"n": 1.0, "m": 2e3}', '{"m":2000,"n":1}'),
        ('{"n": 12345678901234567890}', '{"n":12345678901234567000}'),
        ('{"s": "\\u00fc\\/", "l": [1, {"b": 1, "a": null}]}', '{"s":"ü/","l":[1,{"a":null,"b":1}]}'),
        ("", "{}"),
        ('{"broken": ', '{"broken":'),
    ],
)
def test_arguments_are_compared_by_value(gateway: Gateway, ours: str, theirs: str) -> None:
    client = Plain(gateway)
    reply = call(("a", "f", {}))
    reply["tool_calls"][0]["function"]["arguments"] = ours
    _, one = client.chat("hello", reply)
    reply["tool_calls"][0]["function"]["arguments"] = theirs
    client.messages.append({"role": "tool", "tool_call_id": "a", "content": "done"})
    assert client.again()[0].parent_id == one
    reply["tool_calls"][0]["function"]["arguments"] = '{"other": 1}'
    assert client.again()[0].parent_id is None


def test_of_several_choices_the_one_taken_gets_the_next_state(gateway: Gateway) -> None:
    client = Plain(gateway)
    placed, body = client.send("hello")
    for index, text in enumerate(["Hi.", "Hello.", "Hey."]):
        gateway.sessions.enter_reply(placed, f"choice_{index}", say(text), body["messages"])
    client.messages.append(say("Hello."))
    after, _ = client.chat("thanks", "Welcome.")
    assert after.parent_id == "choice_1" and set(gateway.next_states) == {"choice_1"}


def test_a_reply_of_another_model_ends_the_next_state(gateway: Gateway) -> None:
    client = Plain(gateway)
    _, one = client.chat("hello", "Hi.")
    client.messages += [{"role": "user", "content": "are you there?"}, say("(another model) Yes.")]
    client.chat("good", "Fine.")
    assert gateway.texts_after(one) == ["are you there?"]


def test_history_that_was_rewritten_still_shows_the_last_reply(gateway: Gateway) -> None:
    client = Plain(gateway)
    main, _ = client.chat("hello", "Hi.")
    client.chat("read", call(("a", "read", {})))
    client.messages.append({"role": "tool", "tool_call_id": "a", "content": "a long result " * 50})
    two = client.receive(client.again(), "I have read it.")
    client.messages[4] = {"role": "tool", "tool_call_id": "a", "content": "[old result cleared]"}
    after, _ = client.chat("thanks", "Welcome.")
    assert after.session_id == main.session_id and after.parent_id == two
    assert gateway.texts_after(two) == ["thanks"]


def test_content_parts_images_and_thoughts(gateway: Gateway) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    client = Plain(gateway)
    client.messages.append({"role": "developer", "content": "Be brief."})
    client.messages.append({"role": "user", "content": [{"type": "text", "text": " what is this? "}, picture]})
    first = client.again()
    one = client.receive(first, "<think>hm</think>\n\nA cat.")
    client.messages[-1] = {"role": "assistant", "content": [{"type": "text", "text": "A cat."}], "reasoning": "hm"}
    client.messages[1] = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, dict(picture)]}
    client.messages.append({"role": "user", "content": [{"type": "text", "text": "and this?"}, picture]})
    after = client.again()
    assert after[0].session_id == first[0].session_id and first[0].provenance == ["system", "owner"]
    client.receive(after, "A cat too.")
    assert gateway.next_states[one][0][0]["content"][1] == picture
    other = Plain(gateway, messages=[dict(message) for message in client.messages[:3]])
    other.messages[1] = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture | {"x": 1}]}
    assert other.send("and this?")[0].session_id != first[0].session_id


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "text",
        [None, 3, "x"],
        [{}],
        [{"role": 5, "content": 7}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [None, 3, {"type": "text"}, {"type": "image_url"}]}],
        [{"role": "assistant", "content": "\ud800", "tool_calls": [None, {}, {"function": {"arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "9" * 10_000}}]}],
        [{"role": "system", "content": "only"}],
        [{"role": "user", "content": "x"}, {"role": "user", "content": "[" * 5000}],
    ],
)
def test_odd_messages_are_placed_somewhere(gateway: Gateway, messages: Any) -> None:
    body = {"messages": messages, "tools": [None, 3, {"function": 4}], "metadata": 3}
    placed = gateway.ask(body)
    assert placed.kind in ("main", "side") and placed.session_id
    if isinstance(messages, list):
        assert len(placed.provenance) == len(messages)
        gateway.sessions.enter_reply(placed, "turn", say(""), [m for m in messages if isinstance(m, dict)])


def _prompt(topic: str, stamp: str = "") -> str:
    rules = [f"{number}. About {topic} rule {topic}-{number}: keep {topic} {number} in mind." for number in range(120)]
    return "\n".join(
        ["You are a helpful assistant who follows the rules of the house word for word." * 3, stamp, *rules]
    )


def _with(gateway: Gateway, system: str) -> Plain:
    return Plain(gateway, messages=[{"role": "system", "content": system}])


def test_under_another_full_length_prompt_a_lost_request_is_anothers(gateway: Gateway) -> None:
    cook, clerk = _with(gateway, _prompt("cooking")), _with(gateway, _prompt("law"))
    lost = cook.send("hello")
    gateway.sessions.fail(lost[0])
    other = clerk.send("hello")
    assert other[0].session_id != lost[0].session_id and not gateway.is_retry(other[0])
    again = cook.again()
    assert again[0].session_id == lost[0].session_id and gateway.is_retry(again[0])


def test_under_another_full_length_prompt_a_stopped_reply_is_anothers(gateway: Gateway) -> None:
    cook, clerk = _with(gateway, _prompt("cooking")), _with(gateway, _prompt("law"))
    placed = cook.send("hello")
    stopped = gateway.answer(placed[0], placed[1], say("Well"), aborted=True)
    clerk.messages.append({"role": "user", "content": "hello"})
    assert clerk.send("what may I eat?")[0].session_id != placed[0].session_id
    assert gateway.texts_after(stopped) is None
    assert cook.send("what may I eat?")[0].session_id == placed[0].session_id


def test_alike_up_to_the_reply_the_prompts_keep_two_conversations_apart(gateway: Gateway) -> None:
    stamps = iter(f"Current time: Friday, November 20th, 2026 - 10:{minute}" for minute in range(10, 60))
    topics = ("cooking", "law", "sailing")
    clients = {topic: _with(gateway, _prompt(topic, next(stamps))) for topic in topics}
    opened = {topic: client.chat("hello", "Hi.") for topic, client in clients.items()}
    for topic in ("sailing", "cooking", "law"):
        client = clients[topic]
        client.messages[0] = {"role": "system", "content": _prompt(topic, next(stamps))}
        after, _ = client.chat(f"about {topic}", "Sure.")
        assert after.session_id == opened[topic][0].session_id and after.parent_id == opened[topic][1]
        assert gateway.texts_after(opened[topic][1]) == [f"about {topic}"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (_prompt("law", "Today is Friday, 20 November 2026"), _prompt("law", "Today is Saturday, 21 November 2026")),
        (_prompt("law", "Heute ist Freitag, der 20. November"), _prompt("law", "Heute ist Samstag, der 21. November")),
        (_prompt("law"), "\n".join(_prompt("law").split("\n")[:-6])),
        ("You are helpful. It is Fri Nov 20 10:05.", "You are helpful. It is Sat Nov 21 11:15."),
        ("你是一个乐于助人的助手。" * 40 + "现在是10:05。", "你是一个乐于助人的助手。" * 40 + "现在是11:15。"),
    ],
)
def test_a_prompt_that_differs_by_its_stamps_is_the_same(gateway: Gateway, one: str, two: str) -> None:
    client = _with(gateway, one)
    lost = client.send("hello")
    gateway.sessions.fail(lost[0])
    client.messages[0] = {"role": "system", "content": two}
    again = client.again()
    assert again[0].session_id == lost[0].session_id and gateway.is_retry(again[0])
