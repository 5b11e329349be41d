"""A whole model as the policy of a vLLM server, exchanged in place while requests are in flight.

vLLM holds one model. `PolicyInPlace` is middleware for its server (`--middleware`; the workers need
`vllm_worker.PolicyLoader`): a call to `/v1/policy` freezes the scheduler, has every worker load the weights of a
folder, drops what was computed with the old ones and lets the same requests go on. None fails; their next token is
sampled by the new model, with everything before it read again by that model. While nothing runs, the number of tokens
that each request has so far is taken down (`vllm_notes`), so what version sampled which token is exact.

The whole exchange is one call, so that a caller that dies in the middle of it does not leave a frozen server behind.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from clawrl_trl.engines.calls import IN_PLACE_MODEL, POLICY_PATH, UNKNOWN_VERSION, VERSIONS_HEADER
from clawrl_trl.engines.vllm.version_notes import Message, RunningRequests, Send, noting
from clawrl_trl.engines.vllm.worker_extension import HEAD, shapes
from clawrl_trl.policy_names import BASE_MODEL, POLICY_NAME_FORM, parse_policy_name

SHAPE = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "tie_word_embeddings")
"""What a model's config must have in common with the one it replaces."""

SETTLING_TURNS = 100
"""Turns of the event loop after which an output that was taken from the queue has been counted, however many requests
it is about (vLLM counts 128 of them in a turn)."""

logger = logging.getLogger(__name__)


class Refusal(Exception):
    """The call asks for something that can't be done; nothing has changed."""


def version_of(name: str) -> int:
    """The version of a policy's name; 0 for the base model.

    Raises:
        Refusal: If it is no policy's name.
    """
    version = 0 if name == BASE_MODEL else parse_policy_name(name)
    if version is None:
        raise Refusal(
            f"{name!r} is no name of a policy: {POLICY_NAME_FORM}, or {BASE_MODEL} for the model it began with"
        )
    return version


class ModelHolder:
    """Keeps one server's weights, the names it answers to and what it says about tokens together.

    Args:
        state: The server's `app.state`: its engine client and its list of models.
    """

    def __init__(self, state: Any) -> None:
        self.flights = RunningRequests()
        self.name, self.version = BASE_MODEL, 0
        self._engine = state.engine_client
        self._models = state.openai_serving_models
        self._first = list(self._models.base_model_paths)
        self._origin: Path | None = None
        self._folder: Path | None = None
        self._lock = asyncio.Lock()
        self._follow_new_requests()

    def _follow_new_requests(self) -> None:
        processor = self._engine.output_processor
        add_request = processor.add_request

        def noted(request: Any, *args: Any, **kwargs: Any) -> None:
            known = request.request_id in processor.request_states
            add_request(request, *args, **kwargs)
            if not known:
                state = processor.request_states[request.request_id]
                self.flights.note(state, 0, self._version_for(state))
                if getattr(getattr(request, "sampling_params", None), "structured_outputs", None) is not None:
                    self.flights.constrain(state)

        processor.add_request = noted

    def _version_for(self, request: Any) -> int:
        """The version that samples a request's next token."""
        if request.lora_name is None:
            return self.version
        version = parse_policy_name(request.lora_name)
        return version if version is not None and self.version == 0 else UNKNOWN_VERSION

    async def load(self, name: str, folder: Path | None) -> None:
        """Exchange the weights, and return when the requests in flight go on with the new ones.

        Args:
            name (`str`): `policy-v<N>`, or `base` for the model the server began with.
            folder (`Path`, *optional*): The model's folder; not for `base`.

        Raises:
            Refusal: If the folder does not hold such a model; the old weights still serve then.
        """
        version = version_of(name)
        async with self._lock:
            if name == self.name and (version == 0 or folder == self._folder):
                return  # another run's policy of the same name has another folder
            if self._origin is None:
                self._origin = self._folder = await asyncio.to_thread(_on_disk, self._engine.model_config)
            if version and folder is None:
                raise Refusal(f"{name} needs a folder")
            target = folder if version and folder is not None else self._origin
            await asyncio.to_thread(self._check, target)
            await self._exchange(name, version, target)

    async def _exchange(self, name: str, version: int, folder: Path) -> None:
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._load(folder)
            await self._delivered()
        except Refusal:
            await self._engine.resume_generation()
            raise
        except BaseException:
            # Nobody knows what the workers hold now: rather no server than one that samples from that.
            signal.raise_signal(signal.SIGTERM)
            raise
        self.name, self.version, self._folder = name, version, folder
        for state in self._engine.output_processor.request_states.values():
            sampled = 0 if state.detokenizer is None else state.detokenizer.num_output_tokens()
            self.flights.note(state, sampled, self._version_for(state))
        self._answer_to(name, folder)
        await self._engine.resume_generation()
        logger.info("%s is in place", name)

    async def _load(self, folder: Path) -> None:
        try:
            await self._engine.collective_rpc("load_policy", args=(str(folder),))
        except Exception as error:
            logger.exception("%s could not be loaded, %s stays", folder, self.name)
            await self._engine.collective_rpc("load_policy", args=(str(self._folder),))
            raise Refusal(f"{folder} could not be loaded: {error}") from error

    async def _delivered(self) -> None:
        """Wait until every token sampled so far has been counted; the scheduler is frozen, so none comes after."""
        turns = 0
        while turns < SETTLING_TURNS:
            turns = turns + 1 if self._engine.engine_core.outputs_queue.empty() else 0
            await asyncio.sleep(0)

    def _answer_to(self, name: str, folder: Path) -> None:
        self._models.lora_requests.clear()  # they were made for other weights, or are asked for anew
        paths = self._models.base_model_paths
        added = [name, IN_PLACE_MODEL] if self.version else []
        paths[:] = [*self._first, *(type(self._first[0])(name=one, model_path=str(folder)) for one in added)]

    def _check(self, folder: Path) -> None:
        """Refuse what would fail half-way, and read the files once, so that the exchange finds them in memory."""
        here = self._engine.model_config.hf_config
        try:
            wanted = type(here).from_pretrained(folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refusal(f"{folder} holds no model: {str(error).splitlines()[0]}") from error
        for field in SHAPE:
            theirs, ours = (getattr(one.get_text_config(), field, None) for one in (wanted, here))
            if theirs != ours:
                raise Refusal(f"{folder}: {field} is {theirs}, the model's is {ours}")
        self._check_tensors(folder)
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                while file.read(2**24):
                    pass

    def _check_tensors(self, folder: Path) -> None:
        assert self._origin is not None
        try:
            theirs, ours = shapes(folder), shapes(self._origin)
        except (OSError, SafetensorError) as error:
            raise Refusal(f"{folder} can't be read: {error}") from error
        for name in theirs.keys() & ours.keys():
            if theirs[name] != ours[name]:
                raise Refusal(f"{folder}: {name} has shape {theirs[name]}, the model's {ours[name]}")
        missing = ours.keys() - theirs.keys() - {HEAD}
        if missing and not theirs.keys() - ours.keys():  # a checkpoint may have other names for everything
            raise Refusal(f"{folder} lacks {len(missing)} tensors, {min(missing)} for one")


def _on_disk(config: Any) -> Path:
    """The folder of the model that the server began with, which vLLM has fetched if it came from the hub.

    Raises:
        Refusal: If it is not there; it could then not be put back in place.
    """
    if Path(config.model).is_dir():
        return Path(config.model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(config.model, revision=config.revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise Refusal(f"{config.model} is not on this disk, so it could not be put back: {error}") from error


class PolicyInPlace:
    """ASGI middleware of vLLM's server: adds the route, and the notes to replies.

    Args:
        app: The application it wraps.

    Raises:
        RuntimeError: If the server has several front ends, of which each would know its own requests alone.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._holder: ModelHolder | None = None

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if self._holder is None and hasattr(scope["app"].state, "engine_client"):
            self._holder = self._install(scope["app"])
        wanted = scope["type"] == "http" and any(name == VERSIONS_HEADER.encode() for name, _ in scope["headers"])
        if not wanted or self._holder is None:
            await self._app(scope, receive, send)
            return
        flights = self._holder.flights
        flight = flights.begin()
        kept = [one for one in scope["headers"] if one[0] != b"x-request-id"]
        scope["headers"] = [*kept, (b"x-request-id", flight.encode())]
        try:
            await self._app(scope, receive, noting(send, flights, flight))
        finally:
            flights.end(flight)

    def _install(self, app: Any) -> ModelHolder:
        if app.state.engine_client.vllm_config.parallel_config._api_process_count > 1:
            raise RuntimeError("a policy in place needs a single front end: --api-server-count 1")
        holder = ModelHolder(app.state)
        app.add_api_route(POLICY_PATH, lambda: _state(holder), methods=["GET"])
        app.add_api_route(POLICY_PATH, _loading(holder), methods=["POST"])
        return holder


def _state(holder: ModelHolder) -> dict[str, Any]:
    return {"policy": holder.name, "version": holder.version}


def _loading(holder: ModelHolder) -> Callable[[dict[str, Any]], Awaitable[Any]]:
    from fastapi.responses import JSONResponse

    async def load(body: dict[str, Any]) -> Any:
        folder = body.get("folder")
        try:
            await holder.load(str(body.get("name")), None if folder is None else Path(folder))
        except Refusal as error:
            return JSONResponse({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, 400)
        return _state(holder)

    return load
