"""Each shape that the real OpenClaw puts on the wire, with its Runtime line and without it."""

import pytest
from session_clients import (
    BTW_SYSTEM,
    COMPACTION_SYSTEM,
    CONTINUE,
    CRON_WAKE_PROMPT,
    FLUSH_PROMPT,
    FLUSH_TOOLS,
    HEARTBEAT_PROMPT,
    QUEUED,
    SUBAGENT_END,
    TASK_COMPLETED,
    TITLE_SYSTEM,
    TOOLS,
    Gateway,
    OpenClaw,
    call,
    say,
)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture(params=[True, False], ids=["runtime-line", "no-runtime-line"])
def client(request: pytest.FixtureRequest, gateway: Gateway) -> OpenClaw:
    return OpenClaw(gateway, runtime=request.param)


def test_plain_turns_follow_each_other_without_headers(client: OpenClaw, gateway: Gateway) -> None:
    first, one = client.chat("hello there", "  Hi! What can I do?\n")
    second, two = client.chat("fix my script", "Done.")
    third, _ = client.chat("thanks", "You're welcome.")
    assert first.session_id == second.session_id == third.session_id
    assert [p.kind for p in (first, second, third)] == ["main"] * 3
    assert [p.parent_id for p in (first, second, third)] == [None, one, two]
    assert gateway.next_states[one] == ([{"role": "user", "content": "fix my script"}], ["owner"])
    assert gateway.texts_after(two) == ["thanks"]
    assert first.identity_source == ("message:openclaw" if client.runtime else "inferred")
    assert all(p.kind_reason and not gateway.is_retry(p) for p in (first, second, third))


def test_provenance_names_the_author_of_each_message(client: OpenClaw) -> None:
    client.chat("hello", call(("call_1", "exec", {"cmd": "ls", "n": 1})))
    client.tool("call_1", "a.txt")
    placed = client.again()
    assert placed[0].provenance == ["system", "owner", "assistant", "tool", "client"]


def test_rewritten_ids_arguments_and_nulls_are_the_same_reply(client: OpenClaw, gateway: Gateway) -> None:
    reply = call(("call_1", "exec", {"cmd": "ls", "timeout": 5.0, "env": {"b": 1, "a": "ü"}}), text="")
    first, one = client.chat("list files", reply | {"reasoning_content": "I should look."})
    client.tool("call_1", "a.txt\n(Command exited with code 3)")
    placed = client.again()
    two = client.receive(placed, "There is one file.")
    assert placed[0].session_id == first.session_id and placed[0].parent_id == one
    assert gateway.next_states[one][1] == ["tool"]
    assert gateway.texts_after(one) == ["a.txt\n(Command exited with code 3)"]
    client.chat("ok", "bye")
    assert gateway.texts_after(two) == ["ok"]


def test_all_parallel_tool_results_are_the_next_state(client: OpenClaw, gateway: Gateway) -> None:
    calls = call(("call_1", "read", {"path": "a"}), ("call_2", "read", {"path": "b"}), text="Reading both.")
    _, one = client.chat("read both", calls)
    client.tool("call_1", "content of a")
    client.tool("call_2", '{"status": "error", "error": "no such file"}')
    client.receive(client.again(), "a is fine, b is missing")
    assert gateway.texts_after(one) == ["content of a", '{"status": "error", "error": "no such file"}']
    assert gateway.next_states[one][1] == ["tool", "tool"]


def test_a_hidden_heartbeat_is_a_side_matter(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remember the milk", "I will.")
    poll = [*client.history, {"role": "user", "content": HEARTBEAT_PROMPT}]
    beat = client.again(history=poll)
    client.receive(beat, "NO_REPLY", keep=False)
    assert beat[0].kind == "side" and "heartbeat" in beat[0].kind_reason
    assert beat[0].session_id == main.session_id and not beat[0].answered
    assert beat[0].provenance[-2:] == ["client", "client"]
    after, _ = client.chat("and eggs", "Noted.")
    assert after.session_id == main.session_id and after.kind == "main" and after.parent_id == one
    assert gateway.next_states[one] == ([{"role": "user", "content": "and eggs"}], ["owner"])


def test_a_heartbeat_with_tools_stays_a_side_matter(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remember the milk", "I will.")
    run = [*client.history, {"role": "user", "content": HEARTBEAT_PROMPT}]
    for step in range(3):
        beat = client.again(history=run)
        reply = call((f"call_{step}", "read", {"path": str(step)}))
        client.receive(beat, reply, keep=False)
        run += [reply, {"role": "tool", "tool_call_id": f"call_{step}", "content": "nothing"}]
        assert beat[0].kind == "side" and beat[0].session_id == main.session_id
    after, _ = client.chat("and eggs", "Noted.")
    assert after.session_id == main.session_id and gateway.texts_after(one) == ["and eggs"]


def test_a_heartbeat_merged_into_the_next_message_is_cut_off(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remember the milk", "I will.")
    client.receive(
        client.again(history=[*client.history, {"role": "user", "content": HEARTBEAT_PROMPT}]), "NO_REPLY", keep=False
    )
    client.history.append(
        {"role": "user", "content": "[OpenClaw heartbeat poll]\n\n[Fri 2026-11-20 10:31 UTC] and eggs"}
    )
    placed = client.again()
    two = client.receive(placed, "Noted.")
    assert placed[0].kind == "main" and placed[0].session_id == main.session_id
    assert gateway.next_states[one] == ([{"role": "user", "content": "and eggs"}], ["owner"])
    client.chat("thanks", "Welcome.")
    assert gateway.texts_after(two) == ["thanks"]


def test_a_heartbeat_that_speaks_up_is_not_the_next_state(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remember the milk", "I will.")
    beat = client.again(history=[*client.history, {"role": "user", "content": HEARTBEAT_PROMPT}])
    client.receive(beat, "Your disk is full.", keep=False)
    client.history += [{"role": "user", "content": "[OpenClaw heartbeat poll]"}, say("Your disk is full.")]
    after, _ = client.chat("clean it", "Cleaned.")
    assert after.session_id == main.session_id and after.kind == "main"
    assert gateway.next_states[one] == ([{"role": "user", "content": "clean it"}], ["owner"])


def test_a_cron_wake_is_a_side_run_and_not_the_owners_words(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remind me to stretch", "I will.")
    wake = client.again(history=[*client.history, {"role": "user", "content": CRON_WAKE_PROMPT}])
    client.receive(wake, "Time to stretch!", keep=False)
    assert wake[0].kind == "side" and "cron" in wake[0].kind_reason
    assert wake[0].session_id == main.session_id and wake[0].provenance[-2] == "event"
    client.history += [{"role": "user", "content": "[OpenClaw cron wake]"}, say("Time to stretch!")]
    after, _ = client.chat("did it", "Great.")
    assert after.session_id == main.session_id
    assert gateway.next_states[one] == ([{"role": "user", "content": "did it"}], ["owner"])
    assert after.provenance == ["system", "owner", "assistant", "event", "assistant", "owner", "client"]


def test_btw_is_a_side_question(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("write a poem", "Roses are red.")
    _, two = client.chat("longer", "Roses are red, violets are blue.")
    bare = [{"role": m["role"], "content": m["content"]} for m in client.history]
    body = {
        "messages": [{"role": "system", "content": BTW_SYSTEM}, *bare, {"role": "user", "content": "who wrote it?"}]
    }
    side = gateway.ask(body)
    gateway.answer(side, body, say("You asked me to."))
    assert side.kind == "side" and side.session_id == main.session_id and not side.answered
    after, _ = client.chat("even longer", "...")
    assert after.session_id == main.session_id and gateway.texts_after(two) == ["even longer"]
    assert gateway.texts_after(one) == ["longer"]


def test_btw_is_told_by_its_setting_when_its_wording_is_unknown(client: OpenClaw, gateway: Gateway) -> None:
    main, _ = client.chat("write a poem", "Roses are red.")
    bare = [{"role": m["role"], "content": m["content"]} for m in client.history]
    body = {
        "messages": [{"role": "system", "content": "Be brief."}, *bare, {"role": "user", "content": "who wrote it?"}]
    }
    side = gateway.ask(body)
    assert side.kind == "side" and side.session_id == main.session_id and "system prompt" in side.kind_reason


def test_a_title_before_the_main_turn_is_neither_retry_nor_parent(client: OpenClaw, gateway: Gateway) -> None:
    body = {"messages": [{"role": "system", "content": TITLE_SYSTEM}, {"role": "user", "content": "plan a trip"}]}
    title = gateway.ask(body)
    assert title.kind == "side" and "title" in title.kind_reason
    placed = client.send("plan a trip")
    gateway.answer(title, body, say("Trip planning"))
    assert placed[0].kind == "main" and placed[0].session_id != title.session_id
    assert placed[0].parent_id is None and not gateway.is_retry(placed[0]) and not placed[0].answered
    one = client.receive(placed, "Where to?")
    client.chat("Rome", "Good choice.")
    assert gateway.texts_after(one) == ["Rome"]


def test_a_memory_flush_is_a_side_fork(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("a long talk", "Indeed.")
    fork = [*client.history, {"role": "user", "content": FLUSH_PROMPT}]
    key = "agent:main:internal-session-effects:1"
    flush = client.again(history=fork, tools=FLUSH_TOOLS, key=key)
    reply = call(("call_9", "write", {"path": "memory.md"}))
    client.receive(flush, reply, keep=False)
    fork += [reply, {"role": "tool", "tool_call_id": "call_9", "content": "ok"}]
    more = client.again(history=fork, tools=FLUSH_TOOLS, key=key)
    client.receive(more, "NO_REPLY", keep=False)
    assert flush[0].kind == more[0].kind == "side"
    assert flush[0].session_id == more[0].session_id == main.session_id
    after, _ = client.chat("go on", "Sure.")
    assert after.session_id == main.session_id and gateway.texts_after(one) == ["go on"]


def test_a_flush_under_the_id_of_its_copy_belongs_to_the_session_that_was_copied(
    client: OpenClaw, gateway: Gateway
) -> None:
    main, _ = client.chat("a long talk", "Indeed.")
    _, two = client.chat("go on", "Sure.")
    run = "9e7b1f0c-flush-0123456789abcdef"
    copy = {"key": f"agent:main:internal-session-effects:{run}", "session": f"internal-session-effects-{run}"}
    fork = [*client.history, {"role": "user", "content": FLUSH_PROMPT}]
    reply = call(("call_9", "write", {"path": "memory/2026-11-20.md"}))
    first = client.again(history=fork, tools=FLUSH_TOOLS, **copy)
    client.receive(first, reply, keep=False)
    fork += [reply, {"role": "tool", "tool_call_id": "call_9", "content": "ok"}]
    second = client.again(history=fork, tools=FLUSH_TOOLS, **copy)
    client.receive(second, "NO_REPLY", keep=False)
    for flush, _ in (first, second):
        assert flush.kind == "side" and flush.session_id == main.session_id and flush.answered == []
        assert flush.external_id == main.external_id
    assert "flush" in first[0].kind_reason
    assert client.chat("thanks", "Welcome.")[0].session_id == main.session_id
    assert gateway.texts_after(two) == ["thanks"]


def test_a_flush_of_unknown_wording_is_told_by_its_tools(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    main, one = client.chat("a long talk", "Indeed.")
    fork = [*client.history, {"role": "user", "content": "Write down what matters."}]
    flush = client.again(history=fork, tools=FLUSH_TOOLS)
    assert flush[0].kind == "side" and flush[0].session_id == main.session_id and "tools" in flush[0].kind_reason
    client.receive(flush, "NO_REPLY", keep=False)
    client.chat("go on", "Sure.")
    assert gateway.texts_after(one) == ["go on"]


def test_compaction_itself_is_a_side_request(client: OpenClaw, gateway: Gateway) -> None:
    client.chat("a long talk", "Indeed.")
    text = "<conversation>\nUser: a long talk\nAssistant: Indeed.\n</conversation>\n\nCreate a summary."
    body = {"messages": [{"role": "system", "content": COMPACTION_SYSTEM}, {"role": "user", "content": text}]}
    placed = gateway.ask(body)
    assert placed.kind == "side" and "summar" in placed.kind_reason and not placed.answered


def _compact(client: OpenClaw, kept: int = 0) -> None:
    summary = (
        "The conversation history before this point was compacted into the following summary:\n\n<summary>\nA talk.\n"
        "</summary>"
    )
    client.history = [{"role": "user", "content": summary}, *(client.history[-kept:] if kept else [])]


@pytest.mark.parametrize("kept", [0, 2])
def test_after_compaction_the_runtime_line_keeps_the_session(gateway: Gateway, kept: int) -> None:
    client = OpenClaw(gateway, runtime=True)
    main, _ = client.chat("a long talk", "Indeed.")
    _, two = client.chat("really?", "Yes.")
    _compact(client, kept)
    after, three = client.chat("go on", "Sure.")
    assert after.session_id == main.session_id and after.kind == "main"
    assert gateway.next_states[two] == ([{"role": "user", "content": "go on"}], ["owner"])
    client.chat("more", "Fine.")
    assert gateway.texts_after(three) == ["more"]


def test_after_compaction_history_alone_opens_a_new_session(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    main, one = client.chat("a long talk", "Indeed.")
    _compact(client)
    after, two = client.chat("go on", "Sure.")
    assert after.session_id != main.session_id and gateway.texts_after(one) is None
    assert after.provenance[1] == "client"
    client.chat("more", "Fine.")
    assert gateway.texts_after(two) == ["more"]


def test_after_compaction_a_reply_word_for_word_finds_the_session(gateway: Gateway) -> None:
    client, other = OpenClaw(gateway, runtime=False), OpenClaw(gateway, runtime=False)
    other.chat(
        "a long talk of another", "Another says something long enough to be found, but nobody will look for it."
    )
    main, _ = client.chat("a long talk", "Indeed.")
    _, two = client.chat("really?", "Yes, since the second law of thermodynamics leaves no other way out of it.")
    _compact(client, kept=2)
    after, three = client.chat("go on", "Sure.")
    assert after.session_id == main.session_id and after.kind == "main" and after.parent_id == two
    assert gateway.next_states[two] == ([{"role": "user", "content": "go on"}], ["owner"])
    client.chat("more", "Fine.")
    assert gateway.texts_after(three) == ["more"]


def test_after_compaction_a_short_reply_is_no_proof(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    main, _ = client.chat("a long talk", "Indeed.")
    client.chat("really?", "Yes, of course.")
    _compact(client, kept=2)
    assert client.chat("go on", "Sure.")[0].session_id != main.session_id


def test_a_reply_that_two_sessions_got_identifies_neither(gateway: Gateway) -> None:
    clients = [OpenClaw(gateway, runtime=False) for _ in range(2)]
    reply = "The answer that both of them got is long, but it is the same in every single letter."
    opened = [one.chat(f"hello from {n}", reply)[0].session_id for n, one in enumerate(clients)]
    _compact(clients[0], kept=1)
    assert clients[0].chat("go on", "Sure.")[0].session_id not in opened


def test_another_owners_reply_word_for_word_identifies_nothing(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    main, one = client.chat(
        "a long talk", "Yes, since the second law of thermodynamics leaves no other way out of it."
    )
    thief = OpenClaw(gateway, runtime=False, owner="b", history=[dict(message) for message in client.history])
    _compact(thief, kept=1)
    placed, _ = thief.chat("go on", "Sure.")
    assert placed.session_id != main.session_id and gateway.texts_after(one) is None


def test_a_flush_after_compaction_belongs_to_its_session(gateway: Gateway) -> None:
    client = OpenClaw(gateway, runtime=False)
    client.chat("a long talk", "Indeed.")
    main, two = client.chat("why?", "Since the second law of thermodynamics leaves no other way out of it, as I said.")
    _compact(client, kept=2)
    fork = [*client.history, {"role": "user", "content": FLUSH_PROMPT}]
    flush = client.again(history=fork, tools=FLUSH_TOOLS)
    client.receive(flush, "NO_REPLY", keep=False)
    assert flush[0].kind == "side" and flush[0].session_id == main.session_id and not flush[0].answered
    assert gateway.texts_after(two) is None


def test_a_cron_run_is_a_side_session_of_its_own(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("hello", "Hi.")
    job = OpenClaw(gateway, runtime=client.runtime, session="cron-run-1", key="agent:main:cron:5:run:1")
    placed, _ = job.chat("[cron:5 nightly] tidy up", call(("call_1", "exec", {"cmd": "tidy"})))
    job.tool("call_1", "ok")
    more = job.again()
    job.receive(more, "Tidied.")
    assert placed.kind == more[0].kind == "side" and placed.session_id == more[0].session_id != main.session_id
    assert placed.provenance[1] == "event"
    client.chat("bye", "Bye.")
    assert gateway.texts_after(one) == ["bye"]


@pytest.mark.parametrize("glue", ["\n\n", "", " "])
def test_a_subagents_end_is_an_event_and_its_replies_merge(client: OpenClaw, gateway: Gateway, glue: str) -> None:
    main, one = client.chat("look it up", "I asked a helper.")
    child = OpenClaw(gateway, runtime=client.runtime, session="child-1", key="agent:main:subagent:7")
    sub, _ = child.chat("[Subagent Context] You are a subagent.\n\n[Subagent Task]: look it up", "It is 42.")
    assert sub.session_id != main.session_id and sub.kind == "main" and sub.provenance[1] == "event"
    event = {"role": "user", "content": SUBAGENT_END.format(result="It is 42.")}
    placed = client.again(history=[*client.history, event])
    two = client.receive(placed, "The helper says 42.", keep=False)
    assert placed[0].kind == "main" and placed[0].session_id == main.session_id and placed[0].parent_id == one
    assert gateway.next_states[one][1] == ["event"]
    client.history[-1] = say("I asked a helper." + glue + "The helper says 42.")
    after, _ = client.chat("thanks", "Welcome.")
    assert after.session_id == main.session_id and after.parent_id == two
    assert gateway.next_states[two] == ([{"role": "user", "content": "thanks"}], ["owner"])


def test_a_subagents_result_in_plain_words_is_an_event(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("look it up", "I asked a helper.")
    result = {"role": "user", "content": TASK_COMPLETED.format(result="No, that is wrong: it is Paris."), "minute": 7}
    placed = client.again(history=[*client.history, result])
    two = client.receive(placed, "The helper says Paris.", keep=False)
    assert placed[0].kind == "main" and placed[0].session_id == main.session_id and placed[0].parent_id == one
    assert placed[0].provenance[-2:] == ["event", "client"]
    assert gateway.next_states[one][1] == ["event"]
    client.history[-1] = say("I asked a helper.\nThe helper says Paris.")
    after, _ = client.chat("thanks", "Welcome.")
    assert after.session_id == main.session_id and after.parent_id == two
    assert gateway.next_states[two] == ([{"role": "user", "content": "thanks"}], ["owner"])


def test_infer_one_shots_stay_apart_and_get_no_next_state(client: OpenClaw, gateway: Gateway) -> None:
    client.chat("hello", "Hi.")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    first = gateway.ask(body)
    gateway.answer(first, body, say("Hi."))
    second = gateway.ask(body)
    gateway.answer(second, body, say("Hi."))
    assert len({first.session_id, second.session_id}) == 2
    assert not first.answered and not second.answered and not gateway.is_retry(second)


def _queued(client: OpenClaw, lost: str, newest: str) -> list[dict[str, object]]:
    text = f"{QUEUED}\n[Fri 2026-11-20 10:00 UTC] {lost}\n\n{newest}"
    return [*client.history[:-1], {"role": "user", "content": text}]


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_rewritten_message_after_a_5xx_is_a_retry(
    client: OpenClaw, gateway: Gateway, opening: bool, noticed: bool
) -> None:
    before = None if opening else client.chat("hello", "Hi.")[1]
    lost = client.send("do the thing")
    if noticed:
        gateway.sessions.fail(lost[0])
    for _ in range(3):
        again = client.again(history=_queued(client, "do the thing", CONTINUE))
        assert again[0].session_id == lost[0].session_id and again[0].kind == "main"
        assert gateway.is_retry(again[0]) and again[0].parent_id == before
        gateway.sessions.fail(again[0])
    again = client.again(history=_queued(client, "do the thing", CONTINUE))
    done = client.receive(again, "Done.")
    if before:
        assert gateway.next_states[before] == ([{"role": "user", "content": "do the thing"}], ["owner"])
    after, _ = client.chat("good", "Thanks.")
    assert after.session_id == lost[0].session_id and after.parent_id == done
    assert gateway.texts_after(done) == ["good"]


def test_a_retry_goes_to_the_request_that_is_known_to_be_lost(gateway: Gateway) -> None:
    one, two = OpenClaw(gateway, runtime=False), OpenClaw(gateway, runtime=False)
    lost, flying = one.send("do the thing"), two.send("do the thing")
    gateway.clock -= 10
    gateway.sessions.fail(lost[0])
    again = one.again(history=_queued(one, "do the thing", CONTINUE))
    assert again[0].session_id == lost[0].session_id != flying[0].session_id


def test_a_cut_stream_is_retried_and_the_partial_reply_gets_no_feedback(client: OpenClaw, gateway: Gateway) -> None:
    lost = client.send("do the thing")
    partial = gateway.answer(lost[0], lost[1], say("I am do"), aborted=True)
    again = client.again(history=_queued(client, "do the thing", CONTINUE))
    assert (
        gateway.is_retry(again[0])
        and gateway.retried_turn(again[0]) == partial
        and again[0].session_id == lost[0].session_id
        and not again[0].answered
    )
    done = client.receive(again, "Done.")
    client.chat("good", "Thanks.")
    assert gateway.texts_after(partial) is None and gateway.texts_after(done) == ["good"]


def test_a_nudge_after_a_tool_result_is_a_retry(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("list files", call(("call_1", "exec", {"cmd": "ls"})))
    client.tool("call_1", "a.txt")
    lost = client.again()
    gateway.sessions.fail(lost[0])
    again = client.again(history=[*client.history, {"role": "user", "content": CONTINUE}])
    assert gateway.is_retry(again[0]) and again[0].session_id == main.session_id and again[0].parent_id == one
    assert again[0].provenance[-2:] == ["client", "client"]
    two = client.receive(again, "One file.")
    assert gateway.next_states[one][1] == ["tool"] and gateway.texts_after(one) == ["a.txt"]
    client.chat("good", "Thanks.")
    assert gateway.texts_after(two) == ["good"]


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("noticed", [True, False])
def test_what_follows_a_stopped_reply_is_its_next_state(
    client: OpenClaw, gateway: Gateway, opening: bool, noticed: bool
) -> None:
    before = None if opening else client.chat("hello", "Hi.")[1]
    placed = client.send("write a book")
    stopped = gateway.answer(placed[0], placed[1], say("Chapter 1. It was"), aborted=noticed)
    after, two = client.chat("a poem is enough", "Roses are red.")
    assert after.session_id == placed[0].session_id and after.parent_id == before and after.kind == "main"
    # An opening that others may share is too little to tell an unnoticed stop by: only its client's id or a reply is.
    if noticed or client.runtime or before:
        assert gateway.next_states[stopped] == ([{"role": "user", "content": "a poem is enough"}], ["owner"])
    else:
        assert gateway.texts_after(stopped) is None
    if before:
        assert gateway.texts_after(before) == ["write a book"]
    client.chat("nice", "Thanks.")
    assert gateway.texts_after(two) == ["nice"] and len(gateway.next_states) == len(
        {turn for turn in (before, stopped, two) if turn and gateway.texts_after(turn)}
    )


def test_after_a_stop_the_client_joins_both_messages_in_later_history(client: OpenClaw, gateway: Gateway) -> None:
    main, _ = client.chat("hello", "Hi.")
    placed = client.send("write a book")
    stopped = gateway.answer(placed[0], placed[1], say("Chapter 1. It was"), aborted=True)
    _, two = client.chat("a poem is enough", "Roses.")
    client.history[-3:] = [{"role": "user", "content": "write a book\na poem is enough", "minute": 3}, say("Roses.")]
    after, three = client.chat("nice", "Thanks.")
    assert after.session_id == main.session_id and after.parent_id == two
    assert gateway.texts_after(stopped) == ["a poem is enough"] and gateway.texts_after(two) == ["nice"]
    client.chat("bye", "Bye.")
    assert gateway.texts_after(three) == ["bye"]


def test_two_replies_stopped_in_a_row_get_their_own_next_states(client: OpenClaw, gateway: Gateway) -> None:
    client.chat("hello", "Hi.")
    stopped = []
    for text in ("write a book", "no, a poem"):
        placed = client.send(text)
        stopped.append(gateway.answer(placed[0], placed[1], say(f"Well, {text}"), aborted=True))
    client.chat("in French, I said", "Les roses.")
    assert [gateway.texts_after(turn) for turn in stopped] == [["no, a poem"], ["in French, I said"]]


def test_a_reply_stopped_after_a_tools_result_gets_its_next_state(client: OpenClaw, gateway: Gateway) -> None:
    _, one = client.chat("list files", call(("call_1", "exec", {"cmd": "ls"})))
    client.tool("call_1", "a.txt")
    placed = client.again()
    stopped = gateway.answer(placed[0], placed[1], say("There is one file, and"), aborted=True)
    client.chat("enough, delete it", "Gone.")
    assert gateway.texts_after(one) == ["a.txt"] and gateway.texts_after(stopped) == ["enough, delete it"]


def test_a_reply_that_the_engine_cut_is_not_one_that_the_user_stopped(client: OpenClaw, gateway: Gateway) -> None:
    client.chat("hello", "Hi.")
    placed = client.send("write a book")
    cut = gateway.answer(placed[0], placed[1], say("Chapter 1. It was"), aborted=True, stopped=False)
    after, _ = client.chat("are you there?", "Yes.")
    assert after.session_id == placed[0].session_id and gateway.texts_after(cut) is None


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("heard", ["nothing", "failed", "aborted"])
def test_a_killed_clients_message_is_folded_and_then_dropped(
    client: OpenClaw, gateway: Gateway, opening: bool, heard: str
) -> None:
    before = None if opening else client.chat("hello", "Hi.")[1]
    lost = client.send("first half")
    if heard == "failed":
        gateway.sessions.fail(lost[0])
    elif heard == "aborted":
        gateway.answer(lost[0], lost[1], say("Well, the"), aborted=True)
    folded = client.again(history=_queued(client, "first half", "second half\n\nwith a blank line"))
    two = client.receive(folded, "Both halves.", keep=False)
    assert folded[0].session_id == lost[0].session_id and folded[0].parent_id == before
    if before and heard != "aborted":
        assert gateway.texts_after(before) == ["first half\n\nsecond half\n\nwith a blank line"]
    client.history[-1:] = [{"role": "user", "content": "second half\n\nwith a blank line"}, say("Both halves.")]
    after, _ = client.chat("fine", "Good.")
    assert after.session_id == lost[0].session_id and after.parent_id == two
    assert gateway.texts_after(two) == ["fine"]


@pytest.mark.parametrize("opening", [True, False])
def test_a_folded_message_that_never_reached_us_still_leads_on(
    client: OpenClaw, gateway: Gateway, opening: bool
) -> None:
    before = None if opening else client.chat("hello", "Hi.")[1]
    client.user("never sent")
    folded = client.again(history=_queued(client, "never sent", "the newer one"))
    one = client.receive(folded, "Both.", keep=False)
    assert folded[0].kind == "main" and folded[0].parent_id == before and not gateway.is_retry(folded[0])
    client.history[-1:] = [{"role": "user", "content": "the newer one"}, say("Both.")]
    after, _ = client.chat("fine", "Good.")
    assert after.session_id == folded[0].session_id and gateway.texts_after(one) == ["fine"]


def test_an_event_right_after_a_heartbeat_that_spoke_up(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("remember the milk", "I asked a helper.")
    beat = client.again(history=[*client.history, {"role": "user", "content": HEARTBEAT_PROMPT}])
    client.receive(beat, "Your disk is full.", keep=False)
    client.history += [{"role": "user", "content": "[OpenClaw heartbeat poll]"}, say("Your disk is full.")]
    event = {"role": "user", "content": SUBAGENT_END.format(result="The milk is here.")}
    placed = client.again(history=[*client.history, event])
    two = client.receive(placed, "The milk has come.")
    assert placed[0].kind == "main" and gateway.next_states[one][1] == ["event"]
    after, _ = client.chat("thanks", "Welcome.")
    assert after.session_id == main.session_id and gateway.texts_after(two) == ["thanks"]


def test_two_agents_interleave_without_mixing(client: OpenClaw, gateway: Gateway) -> None:
    other = OpenClaw(
        gateway, runtime=client.runtime, session="1f0e0d0c-1111-4222-8333-444455556666", key="agent:b:main"
    )
    mine, yours = [], []
    for step in range(4):
        a, b = client.send(f"question {step}"), other.send(f"question {step} of the other")
        yours.append((b[0].session_id, other.receive(b, f"reply b{step}")))
        mine.append((a[0].session_id, client.receive(a, f"reply a{step}")))
    assert len({session for session, _ in mine}) == len({session for session, _ in yours}) == 1
    assert mine[0][0] != yours[0][0]
    assert [gateway.texts_after(turn) for _, turn in mine[:-1]] == [[f"question {n}"] for n in (1, 2, 3)]
    assert [gateway.texts_after(turn) for _, turn in yours[:-1]] == [[f"question {n} of the other"] for n in (1, 2, 3)]


def test_two_clients_with_the_same_first_message_stay_two(client: OpenClaw, gateway: Gateway) -> None:
    other = OpenClaw(gateway, runtime=client.runtime, session="1f0e0d0c-1111-4222-8333-444455556666")
    a, b = client.send("hello"), other.send("hello")
    assert a[0].session_id != b[0].session_id and not gateway.is_retry(b[0])
    one, two = client.receive(a, "Hi!"), other.receive(b, "Hello, you.")
    assert client.chat("x", "y")[0].session_id == a[0].session_id
    assert other.chat("x", "y")[0].session_id == b[0].session_id
    assert gateway.texts_after(one) == gateway.texts_after(two) == ["x"]
    late = OpenClaw(gateway, runtime=client.runtime, session="2f0e0d0c-1111-4222-8333-444455556666").send("hello")
    assert late[0].session_id not in (a[0].session_id, b[0].session_id)


def test_equal_openings_and_equal_replies_stay_two_as_far_as_can_be_told(gateway: Gateway) -> None:
    clients = [OpenClaw(gateway, runtime=False) for _ in range(3)]
    opened = [one.send("hello") for one in clients]
    turns = [one.receive(placed, "Hi!") for one, placed in zip(clients, opened, strict=True)]
    placed = [one.send(f"I am number {n}") for n, one in enumerate(clients)]
    assert {p[0].session_id for p in placed} == {p[0].session_id for p in opened}
    assert len({p[0].session_id for p in placed}) == 3
    for n, (one, p) in enumerate(zip(clients, placed, strict=True)):
        one.receive(p, f"So you are {n}.")
    assert sorted(gateway.texts_after(turn)[0] for turn in turns) == [f"I am number {n}" for n in range(3)]
    for n, one in enumerate(clients):
        assert one.chat("right", "Good.")[0].session_id == placed[n][0].session_id


def test_changing_tools_and_system_prompts_do_not_break_a_conversation(client: OpenClaw, gateway: Gateway) -> None:
    main, one = client.chat("hello", "Hi.")
    client.tools, client.system = TOOLS[:9], "You are somebody else now. " * 40
    after, _ = client.chat("more", "Sure.")
    assert after.session_id == main.session_id and after.kind == "main" and gateway.texts_after(one) == ["more"]


def test_what_a_tool_returned_is_never_the_owners_words(client: OpenClaw, gateway: Gateway) -> None:
    _, one = client.chat("look at it", call(("call_1", "read", {"path": "a.png"})))
    client.tool("call_1", "(see attached image)")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "Attached image(s) from tool result:"}
    client.history.append({"role": "user", "content": [text, picture]})
    placed = client.again()
    client.receive(placed, "A cat.")
    assert gateway.next_states[one][1] == ["tool", "tool"]
