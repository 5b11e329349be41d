"""The HTTP client of the engine dialect (vLLM's); `sync_client` has its synchronous twin.

Everything in the project that talks to an engine does so through here: the gateway forwards with it, the
judge votes and scores with it, the publisher loads adapters with the twin. It promises three things: every call has
a time-out, a failed call raises a typed error and never returns a filled-in value, and log-probs come back
aligned by position with the tokens asked about, or not at all. It never retries; whoever calls knows
whether a second attempt makes sense (`EngineError.retryable` helps to decide).

Example:
    ```python
    async with EngineClient("http://127.0.0.1:8001", key="secret") as engine:
        await engine.load_adapter("policy-v1", "runs/live/policies/policy-v1")
        scores = await engine.prompt_logprobs(context=[1, 2, 3], scored=[4, 5], model="policy-v1")
    ```
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from clawrl_trl.engines.address import HEALTH_TIMEOUT_S, KEEP_ALIVE_S, EngineAddress, EngineClientBase, locate
from clawrl_trl.engines.calls import (
    POLICY_PATH,
    VERSIONS_HEADER,
    EngineCall,
    check_root,
    decode_reply,
    encode,
    exchange_call,
    find_base_name,
    is_already_loaded,
    load_call,
    read_limit,
    read_model_names,
    read_model_roots,
    read_serving,
    unload_call,
)
from clawrl_trl.engines.errors import EngineError, EngineUnavailable, error_of, unavailable
from clawrl_trl.engines.kinds import CANT_EXCHANGE, Serving, is_whole, served_folder
from clawrl_trl.engines.scores import (
    PromptLogprobs,
    is_without_route,
    make_packed_call,
    make_plain_call,
    read_packed,
    read_plain,
)
from clawrl_trl.messages import Json
from clawrl_trl.policy_names import BASE_MODEL

__all__ = [
    "VERSIONS_HEADER",
    "EngineAddress",
    "EngineClient",
    "EngineError",
    "EngineUnavailable",
    "PromptLogprobs",
    "encode",
    "error_of",
    "locate",
    "unavailable",
]

PIECE_BYTES = 2**18
"""How much of a long body is handed to the transport at once."""


class EngineClient(EngineClientBase):
    """Asynchronous client of one engine.

    Args:
        base_url (`str` or callable returning an `EngineAddress`): The engine's URL, with or without `/v1`; or
            where to look it up before every call.
        key (`str`, *optional*): Bearer key, when `base_url` is a string.
        timeout (`float`, defaults to 600): Longest wait for the engine's next byte, in seconds.

    All methods raise `EngineError` when the engine refuses and `EngineUnavailable` when it can't be reached.
    """

    def __init__(
        self, base_url: str | Callable[[], EngineAddress], key: str | None = None, timeout: float = 600.0
    ) -> None:
        super().__init__(base_url, key, timeout)
        # httpx's own bound of 100 would make further requests wait, and fail by a time-out; the gateway bounds them.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_S)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False)
        self._bases: dict[EngineAddress, str] = {}

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
        """Return whether the engine says it can serve."""
        try:
            await self._json(EngineCall("GET", "/health"), limit_s=HEALTH_TIMEOUT_S)
        except EngineError:
            return False
        return True

    async def models(self) -> list[str]:
        """Names of the base model and of each loaded adapter."""
        return read_model_names(await self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    async def limit(self, name: str) -> int | None:
        """Return a limit that it states, by its name; see `read_limit`."""
        return read_limit(await self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S), name)

    async def find_base_name(self) -> str:
        """Return the engine's name for its base model, remembered for its address; `base` if it lists no models."""
        address = self.address
        if address not in self._bases:
            try:
                names = await self.models()
            except EngineError as error:
                # Some OpenAI-compatible servers list no models.
                if error.status not in (404, 405):
                    raise
                names = []
            if not names:
                return BASE_MODEL
            # Only the newest address: a restarted engine has another one.
            self._bases = {address: find_base_name(names)}
        return self._bases[address]

    async def roots(self) -> dict[str, str | None]:
        """Map each model that it serves to what it was loaded from; `None` where the engine doesn't say."""
        return read_model_roots(await self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a policy folder under a name; one that is loaded already stays as it is.

        Raises:
            EngineError: Also when the name is taken by what was loaded from another folder (409).
        """
        try:
            await self._json(load_call(name, path))
        except EngineError as error:
            if not is_already_loaded(error):
                raise
            check_root(name, path, await self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    async def serving(self) -> Serving:
        """Return how it serves policies at this moment."""
        try:
            in_place = await self._json(EngineCall("GET", POLICY_PATH), limit_s=HEALTH_TIMEOUT_S)
        except EngineError as error:
            if error.status not in (404, 405):
                raise
            in_place = None  # no such route: not a vLLM server of ours
        return read_serving(in_place, await self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    async def load_policy(self, name: str, path: str | Path) -> None:
        """Serve a policy's folder in the way that the engine and the kind of policy allow.

        A whole model takes the place of the one before it on an engine that holds only one.

        Raises:
            EngineError: Also when the engine can't serve this kind of policy (422).
        """
        folder = served_folder(Path(path))
        whole = (await self.serving()).whole if is_whole(folder) else "by name"
        if whole == "not":
            raise EngineError(422, CANT_EXCHANGE)
        if whole == "in place":
            await self._json(exchange_call(name, folder))
        else:
            await self.load_adapter(name, folder)

    async def restore_base(self) -> None:
        """Put the model it began with back in place."""
        await self._json(exchange_call(BASE_MODEL, None))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is no error."""
        try:
            await self._json(unload_call(name))
        except EngineError as error:
            if error.status not in (400, 404):
                raise

    async def chat(self, body: Mapping[str, object]) -> Json:
        """A whole (not streamed) chat completion."""
        return await self._json(EngineCall("POST", "/v1/chat/completions", {**body, "stream": False}))

    async def completions(self, body: Mapping[str, object]) -> Json:
        """A whole (not streamed) text completion."""
        return await self._json(EngineCall("POST", "/v1/completions", {**body, "stream": False}))

    async def tokenize(self, body: Mapping[str, object]) -> list[int]:
        """Token ids of a `prompt` or of rendered `messages`."""
        reply = await self._json(EngineCall("POST", "/tokenize", body))
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
        address = self.address
        if address != self._plain:
            try:
                answer = await self._json(make_packed_call(context, scored, model, top_k))
            except EngineError as error:
                if not is_without_route(error):
                    raise
            else:
                return read_packed(answer, scored, top_k)
        reply = await self._json(make_plain_call(context, scored, model, top_k))
        self._plain = address  # only now: a model that is not there is a 404 too
        return read_plain(reply, len(context), scored, top_k)

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
        arguments = self.build_arguments(EngineCall(method, path), None)
        # The engine's key comes last, so that a client can't put its own in its place.
        arguments["headers"] = {**(headers or {}), **arguments["headers"]}
        if isinstance(content, bytes) and len(content) > PIECE_BYTES:
            # Without it httpx would send an iterator in chunked encoding.
            arguments["headers"]["content-length"] = str(len(content))
            content = _split(content)
        try:
            return await self._http.send(self._http.build_request(content=content, **arguments), stream=True)
        except httpx.TransportError as error:
            raise unavailable(error) from error

    async def _json(self, call: EngineCall, limit_s: float | None = None) -> Json:
        try:
            response = await self._http.request(**self.build_arguments(call, limit_s))
        except httpx.TransportError as error:
            raise unavailable(error) from error
        return decode_reply(response)


async def _split(content: bytes) -> AsyncIterator[bytes]:
    """Split a long body: a transport that is given the whole copies what is left of it after every write."""
    for begin in range(0, len(content), PIECE_BYTES):
        yield content[begin : begin + PIECE_BYTES]
