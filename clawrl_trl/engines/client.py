"""The one HTTP client of the engine dialect (vLLM's), asynchronous and synchronous.

Everything in the project that talks to an engine does so through here: the gateway forwards with it, the
judge votes and scores with it, the publisher loads adapters with it. It promises three things: every call has
a time-out, a failed call raises a typed error and never returns a filled-in value, and log-probs come back
aligned by position with the tokens asked about, or not at all. It never retries; whoever calls knows
whether a second attempt makes sense (`EngineError.retryable` helps to decide).

Example:
    ```python
    with SyncEngineClient("http://127.0.0.1:8001", key="secret") as engine:
        engine.load_adapter("policy-v1", "runs/live/policies/policy-v1")
        scores = engine.prompt_logprobs(context=[1, 2, 3], scored=[4, 5], model="policy-v1")
    ```
"""

import json
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

BASE_MODEL = "base"
"""The name under which every engine serves the model without an adapter."""

CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 5.0


class EngineError(Exception):
    """The engine answered, but not with what was asked for.

    Attributes:
        status (`int`): HTTP status; 502 when the answer itself was malformed.
        message (`str`): The engine's own message.
        body (`dict`): The engine's `error` object, if it sent one.
        headers (`Mapping[str, str]`): Headers of the answer (`retry-after` on a 429).
    """

    def __init__(
        self,
        status: int,
        message: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"engine answered {status}: {message}")
        self.status = status
        self.message = message
        self.body: dict[str, Any] = dict(body or {})
        self.headers: Mapping[str, str] = headers or {}

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later: overload and server faults, not a caller's mistake."""
        return self.status in (408, 425, 429) or self.status >= 500


class EngineUnavailable(EngineError):
    """The engine could not be reached, hung up, or took longer than the time-out."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(504 if timed_out else 503, message)
        self.timed_out = timed_out


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine listens (without `/v1`) and the bearer key it asks for."""

    base_url: str
    key: str | None = None
    pid: int | None = None

    @classmethod
    def of(cls, base_url: str, key: str | None = None, pid: int | None = None) -> "EngineAddress":
        """An address from a URL as people write it, with or without `/v1` at its end."""
        return cls(base_url.rstrip("/").removesuffix("/v1"), key, pid)


def locate(run: RunFolder, settings: ServeSettings) -> EngineAddress:
    """Where the engine of a run listens at this moment.

    A remote engine is found by `settings.engine` and `CLAWRL_ENGINE_KEY`, one started for the run by
    its readiness file, which changes when the engine is restarted on another port.

    Raises:
        EngineUnavailable: If the run's engine has not announced itself or its process is gone.
    """
    if settings.engine.startswith(("http://", "https://")):
        return EngineAddress.of(settings.engine, os.environ.get("CLAWRL_ENGINE_KEY"))
    announced = run.announced("engine")
    if announced is None:
        raise EngineUnavailable("the engine is not running (yet)")
    return EngineAddress.of(announced["base_url"], announced.get("key"), announced["pid"])


@dataclass(frozen=True)
class PromptLogprobs:
    """What the model thought of given tokens, at temperature 1.

    Attributes:
        logprobs (`list[float]`): Log-prob of each scored token, exactly as many as were asked about.
        top (`list[dict[int, float]]`): For each of them the `top_k` most likely tokens at that position (the
            scored token may come in addition), token id to log-prob; empty dicts when `top_k` was 0.
    """

    logprobs: list[float]
    top: list[dict[int, float]]


@dataclass(frozen=True)
class _Call:
    method: str
    path: str
    body: Mapping[str, Any] | None = None


def _load_call(name: str, path: str | Path) -> _Call:
    return _Call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(Path(path).absolute())})


def _unload_call(name: str) -> _Call:
    return _Call("POST", "/v1/unload_lora_adapter", {"lora_name": name})


def _scoring_call(context: Sequence[int], scored: Sequence[int], model: str, top_k: int) -> _Call:
    if not context:
        raise ValueError("scoring needs at least one token of context: the first token of a prompt has no log-prob")
    if not scored:
        raise ValueError("there are no tokens to score")
    if top_k < 0:
        raise ValueError(f"top_k must be 0 or more, not {top_k}")
    body = {
        "model": model,
        "prompt": [*map(int, context), *map(int, scored)],
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": top_k,
    }
    return _Call("POST", "/v1/completions", body)


def _scores(reply: Mapping[str, Any], context: int, scored: Sequence[int], top_k: int) -> PromptLogprobs:
    entries = _prompt_entries(reply)
    if len(entries) != context + len(scored):
        raise EngineError(502, f"{context + len(scored)} prompt tokens were sent, {len(entries)} were scored")
    logprobs: list[float] = []
    top: list[dict[int, float]] = []
    for position, (token, entry) in enumerate(zip(scored, entries[context:], strict=True)):
        try:
            row = {int(one): float(value["logprob"]) for one, value in entry.items()}
            ranks = {int(one): value.get("rank") or 0 for one, value in entry.items()}
            logprob = row[int(token)]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EngineError(502, f"no log-prob came back for scored token {position} (id {token})") from None
        if not math.isfinite(logprob):
            raise EngineError(502, f"the log-prob of scored token {position} (id {token}) is not finite")
        logprobs.append(logprob)
        top.append({one: value for one, value in row.items() if 0 < ranks[one] <= top_k})
    return PromptLogprobs(logprobs, top)


def _prompt_entries(reply: Mapping[str, Any]) -> list[Any]:
    choices = reply.get("choices") or [{}]
    entries = choices[0].get("prompt_logprobs") or reply.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise EngineError(502, "the engine sent no prompt_logprobs")
    if entries and isinstance(entries[0], list):
        return entries[0]
    return entries


def _already_loaded(error: EngineError) -> bool:
    return error.status == 400 and "already" in error.message.lower()


def _model_names(reply: Mapping[str, Any]) -> list[str]:
    return [str(model["id"]) for model in reply.get("data", [])]


def error_of(response: httpx.Response) -> EngineError:
    """The typed error for an answer that is not a success; its content must have been read."""
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        # vLLM's older shape puts the fields at the top, FastAPI's own errors a `detail`.
        error = body if isinstance(body, dict) else {}
    message = error.get("message") or error.get("detail") or response.text[:500] or response.reason_phrase
    return EngineError(response.status_code, str(message), error, response.headers)


def _decoded(response: httpx.Response) -> dict[str, Any]:
    if not response.is_success:
        raise error_of(response)
    if not response.content:
        return {}
    try:
        value = json.loads(response.content)
    except ValueError:
        # vLLM answers adapter calls with a plain sentence.
        return {"message": response.text}
    return value if isinstance(value, dict) else {"value": value}


def unavailable(error: httpx.TransportError) -> EngineUnavailable:
    """The typed error for a failed exchange of bytes."""
    timed_out = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
    return EngineUnavailable(f"{type(error).__name__}: {error}".rstrip(": "), timed_out=timed_out)


class _Addressed:
    """The half that both clients share: where the engine is, and what a request to it carries."""

    def __init__(
        self,
        base_url: str | Callable[[], EngineAddress],
        key: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        address = EngineAddress.of(base_url, key) if isinstance(base_url, str) else None
        self._locate: Callable[[], EngineAddress] = (lambda: address) if address else base_url  # type: ignore[assignment]
        self.timeout = httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT_S, timeout))

    @classmethod
    def of_run(cls, run: RunFolder, settings: ServeSettings, timeout: float | None = None) -> Self:
        """A client that finds the run's engine anew for every call, so it survives the engine's restart."""
        return cls(lambda: locate(run, settings), timeout=settings.engine_timeout if timeout is None else timeout)

    @property
    def address(self) -> EngineAddress:
        """Where the engine listens now.

        Raises:
            EngineUnavailable: If it has not announced itself.
        """
        return self._locate()

    def _arguments(self, call: _Call, timeout: float | None) -> dict[str, Any]:
        address = self.address
        headers = {"authorization": f"Bearer {address.key}"} if address.key else {}
        arguments: dict[str, Any] = {
            "method": call.method,
            "url": address.base_url + call.path,
            "headers": headers,
        }
        if call.body is not None:
            arguments["content"] = encode(call.body)
            headers["content-type"] = "application/json"
        arguments["timeout"] = self.timeout if timeout is None else httpx.Timeout(timeout)
        return arguments


def encode(body: Mapping[str, Any]) -> bytes:
    """A JSON body. Raises `ValueError` on NaN and infinities, which JSON has no words for."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class EngineClient(_Addressed):
    """Asynchronous client of one engine.

    Args:
        base_url (`str` or callable returning an `EngineAddress`): The engine's URL, with or without `/v1`; or
            where to look it up before every call.
        key (`str`, *optional*): Bearer key, when `base_url` is a string.
        timeout (`float`, defaults to 600): Longest wait for the engine's next byte, in seconds.

    All methods raise `EngineError` when the engine refuses and `EngineUnavailable` when it can't be reached.
    """

    def __init__(
        self,
        base_url: str | Callable[[], EngineAddress],
        key: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(base_url, key, timeout)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> bool:
        """Whether the engine says it can serve."""
        try:
            await self._json(_Call("GET", "/health"), limit_s=HEALTH_TIMEOUT_S)
        except EngineError:
            return False
        return True

    async def models(self) -> list[str]:
        """Names of the base model and of each loaded adapter."""
        return _model_names(await self._json(_Call("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a policy folder under a name; one that is loaded already stays as it is."""
        try:
            await self._json(_load_call(name, path))
        except EngineError as error:
            if not _already_loaded(error):
                raise

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is no error."""
        try:
            await self._json(_unload_call(name))
        except EngineError as error:
            if error.status not in (400, 404):
                raise

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A whole (not streamed) chat completion."""
        return await self._json(_Call("POST", "/v1/chat/completions", {**body, "stream": False}))

    async def completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A whole (not streamed) text completion."""
        return await self._json(_Call("POST", "/v1/completions", {**body, "stream": False}))

    async def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """Token ids of a `prompt` or of rendered `messages`."""
        reply = await self._json(_Call("POST", "/tokenize", body))
        return [int(token) for token in reply["tokens"]]

    async def prompt_logprobs(
        self, context: Sequence[int], scored: Sequence[int], *, model: str = BASE_MODEL, top_k: int = 0
    ) -> PromptLogprobs:
        """Raw log-probs (temperature 1) of `scored` after `context`.

        Args:
            context (`Sequence[int]`): Token ids before the scored ones, at least one.
            scored (`Sequence[int]`): Token ids to score, at least one.
            model (`str`, defaults to `"base"`): Base or adapter name.
            top_k (`int`, defaults to 0): How many most likely tokens to return at each position.

        Raises:
            EngineError: Also when the answer doesn't cover every scored token with a finite value.
        """
        reply = await self._json(_scoring_call(context, scored, model, top_k))
        return _scores(reply, len(context), scored, top_k)

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send raw bytes and return the answer with its content unread; the caller closes it.

        Raises:
            EngineUnavailable: If no answer began.
        """
        arguments = self._arguments(_Call(method, path), None)
        arguments["headers"] = {**(headers or {}), **arguments["headers"]}
        try:
            return await self._http.send(self._http.build_request(content=content, **arguments), stream=True)
        except httpx.TransportError as error:
            raise unavailable(error) from error

    async def _json(self, call: _Call, limit_s: float | None = None) -> dict[str, Any]:
        try:
            response = await self._http.request(**self._arguments(call, limit_s))
        except httpx.TransportError as error:
            raise unavailable(error) from error
        return _decoded(response)


class SyncEngineClient(_Addressed):
    """Synchronous client of one engine; the same calls as `EngineClient`, safe to share between threads."""

    def __init__(
        self,
        base_url: str | Callable[[], EngineAddress],
        key: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(base_url, key, timeout)
        self._http = httpx.Client(trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> bool:
        """Whether the engine says it can serve."""
        try:
            self._json(_Call("GET", "/health"), limit_s=HEALTH_TIMEOUT_S)
        except EngineError:
            return False
        return True

    def models(self) -> list[str]:
        """Names of the base model and of each loaded adapter."""
        return _model_names(self._json(_Call("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a policy folder under a name; one that is loaded already stays as it is."""
        try:
            self._json(_load_call(name, path))
        except EngineError as error:
            if not _already_loaded(error):
                raise

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is no error."""
        try:
            self._json(_unload_call(name))
        except EngineError as error:
            if error.status not in (400, 404):
                raise

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A whole (not streamed) chat completion."""
        return self._json(_Call("POST", "/v1/chat/completions", {**body, "stream": False}))

    def completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A whole (not streamed) text completion."""
        return self._json(_Call("POST", "/v1/completions", {**body, "stream": False}))

    def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """Token ids of a `prompt` or of rendered `messages`."""
        return [int(token) for token in self._json(_Call("POST", "/tokenize", body))["tokens"]]

    def prompt_logprobs(
        self, context: Sequence[int], scored: Sequence[int], *, model: str = BASE_MODEL, top_k: int = 0
    ) -> PromptLogprobs:
        """Raw log-probs (temperature 1) of `scored` after `context`; see `EngineClient.prompt_logprobs`."""
        reply = self._json(_scoring_call(context, scored, model, top_k))
        return _scores(reply, len(context), scored, top_k)

    def _json(self, call: _Call, limit_s: float | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(**self._arguments(call, limit_s))
        except httpx.TransportError as error:
            raise unavailable(error) from error
        return _decoded(response)
