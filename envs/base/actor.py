"""The actor that puts a gateway's model behind a TorchRL policy.

It speaks to the gateway as any client would, through the official `openai` package: one request per message,
the whole conversation each time, the session in a header. It is the one place of the environments that meets
the network. The client's own retries are off, so that every failed request is seen and counted; a failed
request becomes an empty action, which the world takes as "no reply arrived", and the actor waits until the
gateway is back before it returns. Its reply also tells where asking again is of no use. Only what a person must
remedy (a refused key, an unknown model, a gateway that stays away) is raised.
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
from typing import Any

import httpx
import openai
from openai.types.chat import ChatCompletion

from clawrl_trl.errors import UserError

logger = logging.getLogger(__name__)

Generate = Callable[..., ChatCompletion]
"""`generate(client, model, messages, **sampling)`: asks the gateway for one reply; the session is in `client`."""

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
_PASSING = (408, 409, 425, 429)
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
    message: dict[str, Any] = field(default_factory=dict)
    turn_id: str | None = None
    refusal: str = ""
    too_long: bool = False

    @property
    def action(self) -> str:
        """The reply as the action of a tool environment: the message as JSON; empty when there is none."""
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
        self._locate = base_url if callable(base_url) else lambda: base_url
        self._rng = random.Random(f"stream-{seed}")
        self._lock = threading.Lock()
        self._seen = threading.local()
        self._http = openai.DefaultHttpxClient(event_hooks={"response": [self._note_headers]}, timeout=timeout)
        self.client = openai.OpenAI(
            api_key=api_key or "none",
            base_url=self._url(),
            max_retries=0,
            timeout=timeout,
            http_client=self._http,
        )

    def __call__(self, tensordict: Any) -> Any:
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
        messages: Sequence[Mapping[str, Any]],
        *,
        session_id: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
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
            streamed = self._rng.random() < self.stream_share and not tools
        self._seen.version = self._seen.turn_id = None
        headers = {"X-Session-Id": session_id, **({"X-Group-Id": group} if group else {}), **self.headers}
        client = self.client.with_options(default_headers=headers)
        started = time.perf_counter()
        try:
            wanted = {**self.sampling, **sampling, **({"tools": list(tools)} if tools else {})}
            message, first = self._ask(client, list(messages), streamed, wanted)
        except tuple(_REMEDIES) as error:
            remedy = _REMEDIES[type(error)].format(url=self.client.base_url, model=self.model)
            raise UserError(remedy) from error
        except TRANSPORT_ERRORS as error:
            self.count_failure(error)
            refusal, too_long = _refusal(error)
            spent = time.perf_counter() - started
            return ModelReply("", failed=True, total_s=spent, refusal=refusal, too_long=too_long)
        total = time.perf_counter() - started
        text = message.get("content") or ""
        ttft = None if first is None else first - started
        return ModelReply(text, False, self._seen.version, ttft, total, message, self._seen.turn_id)

    def _ask(
        self, client: openai.OpenAI, messages: list[Any], streamed: bool, sampling: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float | None]:
        if self.generate is not None:
            completion = self.generate(client, self.model, messages, **sampling)
            return completion.choices[0].message.model_dump(exclude_none=True), None
        if not streamed:
            answer = client.chat.completions.create(model=self.model, messages=messages, **sampling)
            return answer.choices[0].message.model_dump(exclude_none=True), None
        stream = client.chat.completions.create(model=self.model, messages=messages, stream=True, **sampling)
        return _read(stream)

    def count_failure(self, error: Exception) -> None:
        """Count a failed request and, if the gateway is away, wait until it is back.

        Raises:
            UserError: If it stays away longer than `patience`.
        """
        with self._lock:
            self.failures += 1
        logger.warning("a request failed: %s: %s", type(error).__name__, error)
        if not isinstance(error, openai.APIStatusError) or error.status_code >= 500:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Return once the gateway answers that it is ready, or when `stopped` is set.

        Raises:
            UserError: If that takes longer than `patience`.
        """
        deadline = time.monotonic() + self.patience
        while not self.stopped.is_set():
            self.client.base_url = self._url()
            state = self._state()
            if state is None:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"the gateway at {self._url()} {state}, for {self.patience:.0f} s now: "
                    "start it with 'clawrl serve', or see its logs."
                )
            self.stopped.wait(POLL_SECONDS)

    def _state(self) -> str | None:
        """Return what is wrong with the gateway at present, or `None`."""
        try:
            status = httpx.get(f"{self._url().removesuffix('/v1')}/readyz", timeout=5).status_code
        except httpx.HTTPError:
            return "does not answer"
        return "is not ready" if status >= 500 else None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _url(self) -> str:
        url = self._locate()
        if url is None:
            return str(self.client.base_url)
        return url.rstrip("/").removesuffix("/v1") + "/v1"

    def _note_headers(self, response: Any) -> None:
        version = response.headers.get("x-clawrl-policy-version", "")
        self._seen.version = int(version) if version.isdecimal() else None
        self._seen.turn_id = response.headers.get("x-clawrl-turn-id", "").split(",")[0] or None


def _refusal(error: Exception) -> tuple[str, bool]:
    """Why a request will never be served, empty if it may be; and whether that is its length."""
    if not isinstance(error, openai.APIStatusError) or error.status_code >= 500 or error.status_code in _PASSING:
        return "", False
    said = error.body.get("message") if isinstance(error.body, dict) else None
    message = str(said or error.message)
    return message, error.status_code == 413 or _TOO_LONG.search(message) is not None


class _CutShort(openai.OpenAIError):
    """A stream that ended without saying how the reply finished."""


def _read(stream: Iterable[Any]) -> tuple[dict[str, Any], float | None]:
    """The message of a streamed reply and when its first token came."""
    pieces: list[str] = []
    first: float | None = None
    finished = False
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.perf_counter()
                pieces.append(choice.delta.content)
            finished = finished or choice.finish_reason is not None
    if not finished:
        raise _CutShort("the stream ended early")
    return {"role": "assistant", "content": "".join(pieces)}, first
