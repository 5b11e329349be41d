"""The synchronous twin of `EngineClient`, for threads and for scripts, with the same promises.

Example:
    ```python
    with SyncEngineClient("http://127.0.0.1:8001", key="secret") as engine:
        engine.load_adapter("policy-v1", "runs/live/policies/policy-v1")
        scores = engine.prompt_logprobs(context=[1, 2, 3], scored=[4, 5], model="policy-v1")
    ```
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from clawrl_trl.engines.address import HEALTH_TIMEOUT_S, KEEP_ALIVE_S, EngineAddress, EngineClientBase
from clawrl_trl.engines.calls import (
    POLICY_PATH,
    EngineCall,
    check_root,
    decode_reply,
    exchange_call,
    is_already_loaded,
    load_call,
    read_model_names,
    read_serving,
    unload_call,
)
from clawrl_trl.engines.errors import EngineError, unavailable
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


class SyncEngineClient(EngineClientBase):
    """Synchronous client of one engine; the same calls as `EngineClient`, safe to share between threads."""

    def __init__(
        self, base_url: str | Callable[[], EngineAddress], key: str | None = None, timeout: float = 600.0
    ) -> None:
        super().__init__(base_url, key, timeout)
        self._http = httpx.Client(limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S), trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> bool:
        """Return whether the engine says it can serve."""
        try:
            self._json(EngineCall("GET", "/health"), limit_s=HEALTH_TIMEOUT_S)
        except EngineError:
            return False
        return True

    def models(self) -> list[str]:
        """Names of the base model and of each loaded adapter."""
        return read_model_names(self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a policy folder under a name; one that is loaded already stays as it is.

        Raises:
            EngineError: Also when the name is taken by what was loaded from another folder (409).
        """
        try:
            self._json(load_call(name, path))
        except EngineError as error:
            if not is_already_loaded(error):
                raise
            check_root(name, path, self._json(EngineCall("GET", "/v1/models"), limit_s=HEALTH_TIMEOUT_S))

    def serving(self) -> Serving:
        """Return how it serves policies at this moment."""
        try:
            in_place = self._json(EngineCall("GET", POLICY_PATH))
        except EngineError as error:
            if error.status not in (404, 405):
                raise
            in_place = None  # no such route: not a vLLM server of ours
        return read_serving(in_place, self._json(EngineCall("GET", "/v1/models")))

    def load_policy(self, name: str, path: str | Path) -> None:
        """Serve a policy's folder in the way that the engine and the kind of policy allow; see `EngineClient`."""
        folder = served_folder(Path(path))
        whole = self.serving().whole if is_whole(folder) else "by name"
        if whole == "not":
            raise EngineError(422, CANT_EXCHANGE)
        if whole == "in place":
            self._json(exchange_call(name, folder))
        else:
            self.load_adapter(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is no error."""
        try:
            self._json(unload_call(name))
        except EngineError as error:
            if error.status not in (400, 404):
                raise

    def chat(self, body: Mapping[str, object]) -> Json:
        """A whole (not streamed) chat completion."""
        return self._json(EngineCall("POST", "/v1/chat/completions", {**body, "stream": False}))

    def completions(self, body: Mapping[str, object]) -> Json:
        """A whole (not streamed) text completion."""
        return self._json(EngineCall("POST", "/v1/completions", {**body, "stream": False}))

    def tokenize(self, body: Mapping[str, object]) -> list[int]:
        """Token ids of a `prompt` or of rendered `messages`."""
        return [int(token) for token in self._json(EngineCall("POST", "/tokenize", body))["tokens"]]

    def prompt_logprobs(
        self, context: Sequence[int], scored: Sequence[int], *, model: str = BASE_MODEL, top_k: int = 0
    ) -> PromptLogprobs:
        """Raw log-probs (temperature 1) of `scored` after `context`; see `EngineClient.prompt_logprobs`."""
        address = self.address
        if address != self._plain:
            try:
                answer = self._json(make_packed_call(context, scored, model, top_k))
            except EngineError as error:
                if not is_without_route(error):
                    raise
            else:
                return read_packed(answer, scored, top_k)
        reply = self._json(make_plain_call(context, scored, model, top_k))
        self._plain = address  # only now: a model that is not there is a 404 too
        return read_plain(reply, len(context), scored, top_k)

    def _json(self, call: EngineCall, limit_s: float | None = None) -> Json:
        try:
            response = self._http.request(**self.build_arguments(call, limit_s))
        except httpx.TransportError as error:
            raise unavailable(error) from error
        return decode_reply(response)
