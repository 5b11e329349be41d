"""A TorchRL policy that acts by asking a gateway's model.

It speaks to the gateway as any client would, through the official `openai` package: one request per message,
the whole conversation each time, the session in a header. The client's own retries are off, so that every failed
request is counted; a failed request becomes an empty action, which the world takes as "no reply arrived", and the
policy waits until the gateway is back before it returns. Its reply says where a repetition would be refused too.
Only what a person must remedy (a refused key, an unknown model, a gateway that stays away) is raised.
"""

import importlib
import importlib.util
import json
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json

if TYPE_CHECKING:
    from tensordict import TensorDictBase

logger = logging.getLogger(__name__)

Generate = Callable[..., ChatCompletion]
"""`generate(client, model, messages, **sampling)`: asks for one reply; `client` carries the session's header."""

POLL_SECONDS = 0.25
TRANSPORT_ERRORS: tuple[type[Exception], ...] = (
    openai.OpenAIError,
    *(importlib.import_module(name).HTTPError for name in ("httpx", "httpx2") if importlib.util.find_spec(name)),
)
_REMEDIES: Mapping[type[openai.APIStatusError], str] = {
    openai.AuthenticationError: "the gateway at {url} refuses the key: set CLAWRL_API_KEY to its chat key.",
    openai.PermissionDeniedError: "the gateway at {url} refuses the key: set CLAWRL_API_KEY to its chat key.",
    openai.NotFoundError: "the gateway at {url} knows no model {model!r}: see {url}/models.",
}
_RETRYABLE_STATUSES = (408, 409, 425, 429)
"""Refusals of a request that may be served later."""
_TOO_LONG = re.compile(r"maximum (?:context|model) length")
"""How vLLM, and the embedded engine after it, say that a conversation is longer than the context; there is no code."""


@dataclass(frozen=True)
class ModelReply:
    """Reply to one request, or the reason why there is none.

    Attributes:
        text (`str`): The reply; empty when the request failed.
        failed (`bool`): Whether no complete reply arrived.
        policy_version (`int`, *optional*): Version that wrote it, from the header `X-Clawrl-Policy-Version`.
        ttft_s (`float`, *optional*): Seconds to the first token; of streamed replies only.
        total_s (`float`): Seconds to the last.
        message (`dict`): The whole message, with its calls and its reasoning, chat API; empty when the request failed.
        turn_id (`str`, *optional*): The turn it was captured as, from the header `X-Clawrl-Turn-Id`.
        refusal (`str`): Why the request is refused however often it is sent, in the server's words; else empty.
        too_long (`bool`): Whether it is refused because the conversation is longer than the model's context.
    """

    text: str
    failed: bool = False
    policy_version: int | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    message: Json = field(default_factory=dict)
    turn_id: str | None = None
    refusal: str = ""
    too_long: bool = False

    @property
    def action(self) -> str:
        """The reply as the action of a tool environment: the message as JSON, empty when there is none."""
        return json.dumps(self.message, ensure_ascii=False) if self.message else ""


class GatewayPolicy:
    """A policy whose action is the gateway's reply to the conversation so far.

    Reads `conversation`, `session_id` and, where an environment offers some, `tools`; writes `action` (the
    text, or the whole message as JSON where tools are on offer), `policy_version` (int64, -1 when unknown), `ttft_s`
    and `total_s` (float32, nan when unknown). Safe to call from several threads.

    Args:
        base_url (`str` or `Callable[[], str | None]`): The gateway, with or without `/v1`; a callable is asked
            anew when the gateway has gone away.
        api_key (`str`, *optional*): Bearer key.
        model (`str`, *optional*, defaults to `"clawrl"`): Model name to ask for.
        sampling (`Mapping`, *optional*): Sampling parameters of every request (`temperature`, `max_tokens`, ...).
        stream_share (`float`, *optional*, defaults to `0.5`): Share of the requests that stream.
        turn_type (`str`, *optional*): `"main"` or `"side"`; not said by default.
        seed (`int`, *optional*, defaults to `0`): Seeds which requests stream.
        generate (`Callable`, *optional*): Makes the request instead, see [`Generate`].
        timeout (`float`, *optional*, defaults to `120.0`): Longest wait for the next byte, in seconds.
        patience (`float`, *optional*, defaults to `60.0`): Longest wait for a gateway that went away.
    """

    def __init__(
        self,
        base_url: str | Callable[[], str | None],
        *,
        api_key: str | None = None,
        model: str = "clawrl",
        sampling: Mapping[str, Any] | None = None,
        stream_share: float = 0.5,
        turn_type: str | None = None,
        seed: int = 0,
        generate: Generate | None = None,
        timeout: float = 120.0,
        patience: float = 60.0,
    ) -> None:
        self.model = model
        self.sampling = dict(sampling or {})
        self.stream_share = stream_share
        self.headers = {"X-Turn-Type": turn_type} if turn_type else {}
        self.generate = generate
        self.timeout = timeout
        self.patience = patience
        self.requests = 0
        self.failures = 0
        self.stopped = threading.Event()
        self._locate_gateway = base_url if callable(base_url) else lambda: base_url
        self._rng = random.Random(f"stream-{seed}")
        self._lock = threading.Lock()
        self._last_response = threading.local()  # the client calls the hook on the thread that made the request
        self._http = openai.DefaultHttpxClient(event_hooks={"response": [self._note_headers]}, timeout=timeout)
        self.client = openai.OpenAI(
            api_key=api_key or "none",
            base_url=self._find_url(),
            max_retries=0,  # failures are counted, and an absent gateway waited for, by the policy itself
            timeout=timeout,
            http_client=self._http,
        )

    def __call__(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Answer the last message of `conversation`."""
        import torch

        tools = json.loads(tensordict["tools"]) if "tools" in tensordict else None
        messages = json.loads(tensordict["conversation"])
        reply = ModelReply("")  # where nothing was said, there is nothing to answer
        if messages:
            reply = self.reply(messages, session_id=tensordict["session_id"], tools=tools or None)
        version = -1 if reply.policy_version is None else reply.policy_version
        tensordict.set("action", reply.text if tools is None else reply.action)
        tensordict.set("policy_version", torch.tensor([version]))
        tensordict.set("ttft_s", torch.tensor([float("nan") if reply.ttft_s is None else reply.ttft_s]))
        tensordict.set("total_s", torch.tensor([reply.total_s]))
        return tensordict

    def reply(
        self,
        messages: Sequence[Json],
        *,
        session_id: str,
        tools: Sequence[Json] | None = None,
        group: str | None = None,
        **sampling: Any,
    ) -> ModelReply:
        """Ask for one reply; a failed request is counted and comes back as an empty one.

        Args:
            messages (`Sequence[Mapping]`): The conversation.
            session_id (`str`): Goes into the header `X-Session-Id`.
            tools (`Sequence[Mapping]`, *optional*): Tools on offer; the request does not stream then.
            group (`str`, *optional*): The rollouts that the session is compared with; goes into `X-Group-Id`.
            sampling: Sampling parameters of this request alone.

        Raises:
            UserError: If the gateway refuses the key, does not know the model, or stays away.
        """
        with self._lock:
            self.requests += 1
            # With tools a reply is read whole: calls come in pieces in a stream.
            streamed = self._rng.random() < self.stream_share and not tools
        # A request that fails before it is answered must not report the version and turn of the one before.
        self._last_response.version = self._last_response.turn_id = None
        headers = {"X-Session-Id": session_id, **({"X-Group-Id": group} if group else {}), **self.headers}
        # A copy for this request: threads share the policy, and each has a session of its own.
        client = self.client.with_options(default_headers=headers)
        started = time.perf_counter()
        try:
            parameters = {**self.sampling, **sampling, **({"tools": list(tools)} if tools else {})}
            message, first_token_at = self._request_reply(client, list(messages), streamed, parameters)
        except tuple(_REMEDIES) as error:
            remedy = _REMEDIES[type(error)].format(url=self.client.base_url, model=self.model)
            raise UserError(remedy) from error
        except TRANSPORT_ERRORS as error:
            self.count_failure(error)
            refusal, too_long = _read_refusal(error)
            elapsed = time.perf_counter() - started
            return ModelReply("", failed=True, total_s=elapsed, refusal=refusal, too_long=too_long)
        total = time.perf_counter() - started
        text = message.get("content") or ""
        ttft = None if first_token_at is None else first_token_at - started
        return ModelReply(text, False, self._last_response.version, ttft, total, message, self._last_response.turn_id)

    def _request_reply(
        self, client: openai.OpenAI, messages: list[Any], streamed: bool, sampling: Mapping[str, Any]
    ) -> tuple[Json, float | None]:
        if self.generate is not None:
            completion = self.generate(client, self.model, messages, **sampling)
            return completion.choices[0].message.model_dump(exclude_none=True), None
        if not streamed:
            answer = client.chat.completions.create(model=self.model, messages=messages, **sampling)
            return answer.choices[0].message.model_dump(exclude_none=True), None
        stream = client.chat.completions.create(model=self.model, messages=messages, stream=True, **sampling)
        return _read_stream(stream)

    def count_failure(self, error: Exception) -> None:
        """Count a failed request and, if the gateway is away, wait until it is back.

        Raises:
            UserError: If it stays away longer than `patience`.
        """
        with self._lock:
            self.failures += 1
        logger.warning("a request failed: %s: %s", type(error).__name__, error)
        # A refusal with a 4xx says that the gateway is there: waiting would change nothing.
        if not isinstance(error, openai.APIStatusError) or error.status_code >= 500:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Return once the gateway answers that it is ready, or when `stopped` is set.

        Raises:
            UserError: If that takes longer than `patience`.
        """
        deadline = time.monotonic() + self.patience
        while not self.stopped.is_set():
            self.client.base_url = self._find_url()  # a gateway that restarts may come back on another port
            trouble = self._find_trouble()
            if trouble is None:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"the gateway at {self._find_url()} {trouble}, for {self.patience:.0f} s now: "
                    "start it with 'clawrl serve', or see its logs."
                )
            self.stopped.wait(POLL_SECONDS)

    def _find_trouble(self) -> str | None:
        """Return what is wrong with the gateway at present; `None` if it is ready."""
        try:
            status = httpx.get(f"{self._find_url().removesuffix('/v1')}/readyz", timeout=5).status_code
        except httpx.HTTPError:
            return "does not answer"
        return "is not ready" if status >= 500 else None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _find_url(self) -> str:
        url = self._locate_gateway()
        if url is None:
            return str(self.client.base_url)
        return url.rstrip("/").removesuffix("/v1") + "/v1"

    def _note_headers(self, response: httpx.Response) -> None:
        version = response.headers.get("x-clawrl-policy-version", "")
        self._last_response.version = int(version) if version.isdecimal() else None
        self._last_response.turn_id = response.headers.get("x-clawrl-turn-id", "").split(",")[0] or None


def _read_refusal(error: Exception) -> tuple[str, bool]:
    """Return why a request will never be served (empty if it may be), and whether that is its length."""
    if (
        not isinstance(error, openai.APIStatusError)
        or error.status_code >= 500
        or error.status_code in _RETRYABLE_STATUSES
    ):
        return "", False
    explanation = error.body.get("message") if isinstance(error.body, dict) else None
    message = str(explanation or error.message)
    return message, error.status_code == 413 or _TOO_LONG.search(message) is not None


class _StreamCutShort(openai.OpenAIError):
    """A stream that ended without saying how the reply finished."""


def _read_stream(stream: Iterable[ChatCompletionChunk]) -> tuple[Json, float | None]:
    """Return the message of a streamed reply, and the `perf_counter` time of its first token."""
    pieces: list[str] = []
    first_token_at: float | None = None
    finished = False
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first_token_at = first_token_at or time.perf_counter()
                pieces.append(choice.delta.content)
            finished = finished or choice.finish_reason is not None
    if not finished:
        raise _StreamCutShort("the stream ended early")
    return {"role": "assistant", "content": "".join(pieces)}, first_token_at
