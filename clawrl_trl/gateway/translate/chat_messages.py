"""Chat messages as the translations write them, whichever API they come from."""

from clawrl_trl.messages import Json


def make_tool_call(call_id: str, name: str, arguments: str) -> Json:
    """A tool call of an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_content(parts: list[Json]) -> str | list[Json]:
    """Parts as a message's content: a single text as plain text, as most templates expect it."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        plain: str = parts[0]["text"]
        return plain
    return parts or ""


def join_texts(parts: list[Json]) -> str:
    """The texts of parts, as one text."""
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


IMAGES_OF_A_TOOL = "Attached image(s) from tool result:"
"""What precedes images that a tool returned: a tool's message is text only, so they follow as a user's message.
The words are those that `dialects` knows as a tool's, not the owner's."""


def make_image_messages(parts: list[Json]) -> list[Json]:
    """The message that carries the images among these parts; none without images."""
    images = [part for part in parts if part["type"] != "text"]
    return [{"role": "user", "content": [{"type": "text", "text": IMAGES_OF_A_TOOL}, *images]}] if images else []


def set_thinking(chat: Json, enabled: bool) -> None:
    """Turn thinking on or off in the chat template, unless the client did so itself."""
    options = chat.get("chat_template_kwargs") or {}
    chat["chat_template_kwargs"] = {"enable_thinking": enabled, **options}


def merge_leading_system(messages: list[Json]) -> list[Json]:
    """The same messages with all leading system messages as one: many templates take only one, in front."""
    texts: list[str] = []
    while len(texts) < len(messages) and messages[len(texts)]["role"] == "system":
        texts.append(messages[len(texts)]["content"])
    head = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return [*head, *messages[len(texts) :]]
