"""Conversations as text: pieces in the chat template's format, each marked as learnt or not.

Rendering with the template itself costs too much for training; a test holds this against it, token by token.
"""

import json
from typing import Any, Literal

from recipes.tiny.dialogues import Dialogue, Message

Learnt = Literal["no", "yes", "after its first token"]
Piece = tuple[str, Learnt]
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function"
    " signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within"
    ' <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call><|im_end|>\n"
)
NO_THOUGHT = "<think>\n\n</think>\n\n"


def _render_system(messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
    instruction = messages[0]["content"] if messages[0]["role"] == "system" else None
    if not tools:
        return "" if instruction is None else f"<|im_start|>system\n{instruction}<|im_end|>\n"
    schemas = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    head = "" if instruction is None else f"{instruction}\n\n"
    return f"<|im_start|>system\n{head}{_TOOLS_HEAD}{schemas}{_TOOLS_TAIL}"


def render_reply(message: Message) -> str:
    """Return the text that the model writes to say `message`, without a thought before it."""
    text = str(message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        gap = "\n" if text else ""
        text += f'{gap}<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
    return text


def render_pieces(talk: Dialogue) -> list[Piece]:
    """The conversation as consecutive texts; the second entry tells whether the model is to learn that text."""
    texts: list[Piece] = [(_render_system(talk.messages, talk.tools), "no")]
    for message in talk.messages:
        content = message["content"]
        if message["role"] == "user":
            texts.append((f"<|im_start|>user\n{content}<|im_end|>\n", "no"))
        elif message["role"] == "tool":
            response = f"<tool_response>\n{content}\n</tool_response>"
            texts.append((f"<|im_start|>user\n{response}<|im_end|>\n", "no"))
        elif message["role"] == "assistant":
            thought = message.get("reasoning_content")
            head = "<|im_start|>assistant\n" + ("" if thought else NO_THOUGHT)
            reply = (f"<think>\n{thought}\n</think>\n\n" if thought else "") + render_reply(message) + "<|im_end|>"
            mode: Learnt = "after its first token" if message.get("context") else "yes"
            texts += [(head, "no"), (reply, mode), ("\n", "no")]
    return [piece for piece in texts if piece[0]]
