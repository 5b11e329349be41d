"""The endpoints whose replies are captured, and in what they differ on the wire.

The engine has two of them. Requests of other APIs are translated to chat completions first and differ here in
their ids only.

The engine is asked for more than the client was (token ids, log-probs, running counts); `present` takes out
again what the client did not ask for, so that it sees what any OpenAI server would send.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from clawrl_trl.messages import Json, Message


@dataclass(frozen=True)
class Wire:
    """One captured endpoint.

    Attributes:
        path (`str`): Where it is, at the gateway and at the engine.
        id_prefix (`str`): What its completion ids begin with.
        conversations (`Callable`): The body's prompts, each as a list of messages; a chat has one.
        logprobs (`Callable`): The fields that make the engine send log-probs, with the client's own wish.
    """

    path: str
    id_prefix: str
    conversations: Callable[[Json], list[list[Message]]]
    logprobs: Callable[[Json], Json]

    def present(self, reply: Json, body: Json, completion_id: str, model: str) -> bool:
        """Turn the engine's reply, or one event of it, into the client's, in place.

        Returns:
            `bool`: Whether the client gets it at all.
        """
        reply["id"] = completion_id
        reply["model"] = model
        choices = reply.get("choices") or []
        if body.get("stream") and not _present_usage(reply, bool(choices), body.get("stream_options") or {}):
            return False
        if not body.get("return_token_ids"):
            for part in (reply, *choices):
                part.pop("prompt_token_ids", None)
                part.pop("token_ids", None)
        logprobs = body.get("logprobs")
        for choice in choices:
            if logprobs is None or logprobs is False:
                # OpenAI sends the field as null to those who did not ask for it.
                choice["logprobs"] = None
            message = choice.get("delta") or choice.get("message") or {}
            if message.get("reasoning"):
                message.setdefault("reasoning_content", message["reasoning"])  # vLLM's name for it, and most clients'
        return True


def _present_usage(event: Json, has_choices: bool, options: Json) -> bool:
    if not has_choices:
        return bool(options.get("include_usage"))
    if not options.get("continuous_usage_stats"):
        event.pop("usage", None)
        if options.get("include_usage"):
            # With `include_usage` OpenAI sends null with every event but the last.
            event["usage"] = None
    return True


def _chat_logprobs(body: Json) -> Json:
    return {"logprobs": True, "top_logprobs": (body.get("top_logprobs") or 0) if body.get("logprobs") else 0}


def _completion_conversations(body: Json) -> list[list[Message]]:
    prompt = body["prompt"]
    is_several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return [[{"role": "user", "content": _prompt_text(text)}] for text in (prompt if is_several else [prompt])]


def _prompt_text(prompt: str | list[int]) -> str:
    """A prompt as message text; token ids have none here, they are kept as the turn's prompt ids."""
    return prompt if isinstance(prompt, str) else f"[{len(prompt)} token ids]"


CHAT = Wire(
    path="/v1/chat/completions",
    id_prefix="chatcmpl-",
    conversations=lambda body: [body["messages"]],
    logprobs=_chat_logprobs,
)

COMPLETIONS = Wire(
    path="/v1/completions",
    id_prefix="cmpl-",
    conversations=_completion_conversations,
    logprobs=lambda body: {"logprobs": body.get("logprobs") or 0},
)

RESPONSES = replace(CHAT, id_prefix="resp_")
MESSAGES = replace(CHAT, id_prefix="msg_")
