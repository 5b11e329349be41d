"""Files of conversations: both forms are read, and a broken one is named with its place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.cli.imported_file import read_conversations
from clawrl_trl.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text()


def written(folder: Path, text: str) -> Path:
    file = folder / "conversations"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_pages_examples_are_of_the_form(tmp_path: Path) -> None:
    (sessions,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (conversation,) = read_conversations(written(tmp_path, sessions))
    assert [turn.get("type") for turn in conversation["turns"]] == ["main", "side"]
    (lines,) = re.findall(r"```jsonl\n(.*?)```", PAGE, re.DOTALL)
    moon, garden = read_conversations(written(tmp_path, lines))
    assert re.fullmatch(r"chat-[0-9a-f]{16}", moon["session_id"]) and garden["session_id"] == "garden"
    (turn,) = moon["turns"]
    assert [message["role"] for message in turn["prompt"]] == ["user"]
    assert turn["response"]["content"] == "**384,400 km** on average."
    assert turn["next_state"] == [{"role": "user", "content": "No bold type, please."}]


def test_a_chat_with_tools_keeps_calls_and_results(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "assistant", "content": "One file."},
    ]
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
    chat = json.dumps({"messages": messages, "tools": tools})
    (conversation,) = read_conversations(written(tmp_path, chat))
    first, last = conversation["turns"]
    assert first["response"] == messages[1] and first["next_state"] == [messages[2]] and first["tools"] == tools
    assert last["prompt"] == messages[:3] and last["next_state"] is None


@given(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), min_size=1, max_size=12))
def test_every_message_stands_once_behind_the_first_reply(tmp_path_factory: Any, roles: list[str]) -> None:
    messages = [{"role": role, "content": f"{number}"} for number, role in enumerate(roles)]
    file = written(tmp_path_factory.mktemp("chat"), json.dumps({"messages": messages}))
    replies = [at for at, role in enumerate(roles) if role == "assistant" and at > 0]
    if not replies:
        with pytest.raises(UserError, match="has no reply"):
            read_conversations(file)
        return
    (conversation,) = read_conversations(file)
    assert [turn["prompt"] for turn in conversation["turns"]] == [messages[:at] for at in replies]
    behind = [message for turn in conversation["turns"] for message in [turn["response"], *(turn["next_state"] or [])]]
    assert behind == messages[replies[0] :]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"messages": [{"role": "user", "content": "x"}]}', "conversation 0 has no reply"),
        ('{"messages": [{"role": "boss", "content": "x"}]}', "message 0 has no role among"),
        ('{"messages": [{"role": "user"}]}', "message 0 has no content"),
        ('{"messages": "x"}', "messages must be a list"),
        ('{"conversations": []}', "no session_id and no messages: docs/import.md"),
        ('{"messages": [], "tools": 3}', "tools must be a list"),
        ('{"a": 1}\n{"b": }', "line 2 is not JSON"),
        ("[1]", "conversation 0 is not an object"),
        ('{"session_id": "a", "turns": [{"prompt": [3], "response": "x"}]}', "prompt: message 0 has no role"),
    ],
)
def test_a_wrong_entry_is_told_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        read_conversations(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_other_encodings(tmp_path: Path) -> None:
    chat = '{"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "ö"}]}'
    file = tmp_path / "chats"
    file.write_bytes(chat.encode("utf-8-sig"))
    assert read_conversations(file)[0]["turns"][0]["response"]["content"] == "ö"
    file.write_bytes(chat.encode("utf-16"))
    with pytest.raises(UserError, match="save it as UTF-8"):
        read_conversations(file)
