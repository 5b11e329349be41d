"""A whole reply, put together from the events of the engine's stream.

The engine is asked to stream even when the client waits for a plain reply: what was sampled is then known while it
is sampled, and is kept when the client leaves or asks to stop. A client must not notice, so a reply is built here
as the engine would have sent it. What a stream can't say (an echoed prompt, log-probs of the prompt, the best of
several attempts) stays a plain request: `is_streamable` is where that is decided.
"""

from clawrl_trl.gateway.capture import Capture, Choice
from clawrl_trl.messages import Json

PLAIN_ONLY = (
    "echo",
    "prompt_logprobs",
    "use_beam_search",
    "return_prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
)
"""Fields of a request whose effect only a plain reply shows."""

_PASSED_ON = ("system_fingerprint", "service_tier", "metrics")


def is_streamable(body: Json) -> bool:
    """Return whether the events of a stream say everything that a plain reply to this request would.

    Hidden reasoning is plain too: in a stream vLLM withholds the ids of all tokens along with it.
    """
    best_of = body.get("best_of")
    # The engine samples all and keeps the best at the end: nothing can be streamed before.
    if isinstance(best_of, int) and best_of > (body.get("n") or 1):
        return False
    return body.get("include_reasoning") is not False and not any(_asks_for(body, name) for name in PLAIN_ONLY)


def _asks_for(body: Json, name: str) -> bool:
    """Return whether a field asks for something; 0 does (log-probs of no other tokens than the sampled ones)."""
    return body.get(name) is not None and body[name] is not False


class ReplyCollector:
    """Collector of what a `Capture` does not keep: what the client alone may want to see.

    Args:
        body (`Mapping`): The client's request.
    """

    def __init__(self, body: Json) -> None:
        self._shows_logprobs = _asks_for(body, "logprobs")
        self._head: Json = {}
        self._passed_on: Json = {}
        self._stop_reasons: dict[int, object] = {}
        self._logprobs: dict[int, Json] = {}

    def take(self, event: Json) -> None:
        """Add an event of the stream."""
        # Notes on versions come first and are no completion; they have no `object`.
        if not self._head and "object" in event:
            self._head = {name: event.get(name) for name in ("id", "object", "created", "model")}
        self._passed_on |= {name: event[name] for name in _PASSED_ON if event.get(name) is not None}
        for choice in event.get("choices") or ():
            index = choice.get("index", 0)
            if choice.get("stop_reason") is not None:
                self._stop_reasons[index] = choice["stop_reason"]
            if self._shows_logprobs:
                logprobs_so_far = self._logprobs.setdefault(index, {})
                for name, values in (choice.get("logprobs") or {}).items():
                    logprobs_so_far.setdefault(name, []).extend(values or ())

    def reply(self, capture: Capture) -> Json:
        """The whole reply, when everything has been captured."""
        is_chat = str(self._head.get("object")).startswith("chat.")
        choices = [self._make_choice(choice, is_chat) for _, choice in sorted(capture.choices.items())]
        head = self._head | {"object": "chat.completion" if is_chat else "text_completion"}
        reply = head | {"choices": choices, "usage": capture.usage} | self._passed_on
        if capture.prompt_ids is not None:
            reply["prompt_token_ids"] = capture.prompt_ids
        return reply

    def _make_choice(self, choice: Choice, is_chat: bool) -> Json:
        fields: Json = {"index": choice.index}
        if is_chat:
            fields["message"] = _make_message(choice)
        else:
            fields["text"] = "".join(choice.content)
            fields["prompt_token_ids"] = choice.prompt_ids
        return fields | {
            "logprobs": self._logprobs.get(choice.index) or None,
            "finish_reason": choice.finish_reason,
            "stop_reason": self._stop_reasons.get(choice.index),
            "token_ids": choice.token_ids,
        }


def _make_message(choice: Choice) -> Json:
    message = dict(choice.message)
    if choice.reasoning:
        # vLLM's whole reply calls it so; clients that read the other name find that too.
        message["reasoning"] = message["reasoning_content"]
    return message
