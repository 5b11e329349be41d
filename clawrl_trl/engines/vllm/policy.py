"""A whole model as the policy of a vLLM server, exchanged in place while requests are in flight.

vLLM holds one model. `PolicyInPlace` is middleware for its server (`--middleware`; the workers need
`worker.WorkerExtension`): a call to `/v1/policy` freezes the scheduler, has every worker load the weights of a
folder, drops what was computed with the old ones and lets the same requests go on. None fails; their next token is
sampled by the new model, with everything before it read again by that model. While nothing runs, the number of tokens
that each request has so far is recorded (`version_notes`), so what version sampled which token is exact.

The whole exchange is one call, so that a caller that dies in the middle of it does not leave a frozen server behind.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from safetensors import SafetensorError
from starlette.types import ASGIApp, Receive, Scope, Send

from clawrl_trl.engines.calls import IN_PLACE_MODEL, POLICY_PATH, UNKNOWN_VERSION, VERSIONS_HEADER
from clawrl_trl.engines.vllm.cache_memory import MEMORY_PATH, make_memory_route
from clawrl_trl.engines.vllm.compat import ApiServer, RequestState, count_sampled
from clawrl_trl.engines.vllm.scoring import add_scoring_route
from clawrl_trl.engines.vllm.version_notes import RunningRequests, add_version_notes
from clawrl_trl.engines.vllm.worker_extension import HEAD, read_shapes
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
        server (`ApiServer`): The server.
    """

    def __init__(self, server: ApiServer) -> None:
        self.running = RunningRequests()
        self.name, self.version = BASE_MODEL, 0
        self._server = server
        self._origin: Path | None = None
        self._folder: Path | None = None
        self._lock = asyncio.Lock()
        server.watch_requests(self._note_new_request)

    def _note_new_request(self, request: RequestState, constrained: bool) -> None:
        self.running.note(request, 0, self._version_for(request))
        if constrained:
            self.running.note_constraint(request)

    def _version_for(self, request: RequestState) -> int:
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
                self._origin = self._folder = await asyncio.to_thread(_find_on_disk, self._server.model_config)
            if version and folder is None:
                raise Refusal(f"{name} needs a folder")
            target = folder if version and folder is not None else self._origin
            # Before the scheduler is frozen: reading gigabytes would hold up every request under way.
            await asyncio.to_thread(self._check, target)
            await self._exchange(name, version, target)

    async def _exchange(self, name: str, version: int, folder: Path) -> None:
        try:
            await self._server.pause()
        except BaseException:
            # It may have failed when the scheduler stood still already, and nobody else would let that go on.
            await self._server.resume()
            raise
        try:
            await self._load(folder)
            await self._wait_until_counted()
        except Refusal:
            await self._server.resume()
            raise
        except BaseException:
            # Nobody knows what the workers hold now: rather no server than one that samples from that.
            signal.raise_signal(signal.SIGTERM)
            raise
        self.name, self.version, self._folder = name, version, folder
        # Before anything is sampled again: between this count and the next token no other version may speak.
        for request in self._server.requests():
            self.running.note(request, count_sampled(request), self._version_for(request))
        self._server.rename_model([name, IN_PLACE_MODEL] if version else [], folder)
        await self._server.resume()
        logger.info("%s is in place", name)

    async def _load(self, folder: Path) -> None:
        try:
            await self._server.call_workers("load_policy", str(folder))
        except Exception as error:
            # A model that failed half-way is good for nothing, others may be complete: all take the old weights again.
            logger.exception("%s could not be loaded, %s stays", folder, self.name)
            await self._server.call_workers("load_policy", str(self._folder))
            raise Refusal(f"{folder} could not be loaded: {error}") from error

    async def _wait_until_counted(self) -> None:
        """Wait until every token sampled so far has been counted; the scheduler is frozen, so none comes after."""
        turns = 0
        while turns < SETTLING_TURNS:
            turns = 0 if self._server.has_pending_outputs() else turns + 1
            await asyncio.sleep(0)

    def _check(self, folder: Path) -> None:
        """Refuse what would fail half-way, and read the files once, so that the exchange finds them in memory."""
        current = self._server.model_config.hf_config
        try:
            config = type(current).from_pretrained(folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refusal(f"{folder} holds no model: {str(error).splitlines()[0]}") from error
        for field in SHAPE:
            theirs, ours = (getattr(each.get_text_config(), field, None) for each in (config, current))
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
            theirs, ours = read_shapes(folder), read_shapes(self._origin)
        except (OSError, SafetensorError) as error:
            raise Refusal(f"{folder} can't be read: {error}") from error
        for name in theirs.keys() & ours.keys():
            if theirs[name] != ours[name]:
                raise Refusal(f"{folder}: {name} has shape {theirs[name]}, the model's {ours[name]}")
        missing = ours.keys() - theirs.keys() - {HEAD}
        if missing and not theirs.keys() - ours.keys():  # a checkpoint may have other names for everything
            raise Refusal(f"{folder} lacks {len(missing)} tensors, {min(missing)} for one")


def _find_on_disk(config: Any) -> Path:
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
    """ASGI middleware of vLLM's server: adds our routes, and the notes to replies.

    Args:
        app: The application it wraps.

    Raises:
        RuntimeError: If the server has several front ends, of which each would know its own requests alone.
        VLLMVersionError: If this vLLM lacks what is needed for it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._holder: ModelHolder | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only a message's scope leads to vLLM's application: a middleware is given no more than the next layer.
        if self._holder is None and ApiServer.is_ready(scope["app"].state):
            self._holder = self._install(scope["app"])
        has_asked = scope["type"] == "http" and any(name == VERSIONS_HEADER.encode() for name, _ in scope["headers"])
        if not has_asked or self._holder is None:
            await self._app(scope, receive, send)
            return
        running = self._holder.running
        request_id = running.begin()
        # vLLM makes this header part of its own request id; the client's may be any text, and may come twice.
        headers = [header for header in scope["headers"] if header[0] != b"x-request-id"]
        scope["headers"] = [*headers, (b"x-request-id", request_id.encode())]
        try:
            await self._app(scope, receive, add_version_notes(send, running, request_id))
        finally:
            running.end(request_id)

    def _install(self, app: FastAPI) -> ModelHolder:
        server = ApiServer(app.state)
        if server.front_ends > 1:
            raise RuntimeError("a policy in place needs a single front end: --api-server-count 1")
        holder = ModelHolder(server)
        app.add_api_route(POLICY_PATH, lambda: _describe(holder), methods=["GET"])
        app.add_api_route(POLICY_PATH, _loading_route(holder), methods=["POST"])
        app.add_api_route(MEMORY_PATH, make_memory_route(server), methods=["GET"])
        add_scoring_route(app, server)
        return holder


def _describe(holder: ModelHolder) -> dict[str, Any]:
    return {"policy": holder.name, "version": holder.version}


def _loading_route(holder: ModelHolder) -> Callable[[dict[str, Any]], Awaitable[JSONResponse]]:
    async def load(body: dict[str, Any]) -> JSONResponse:
        folder = body.get("folder")
        try:
            await holder.load(str(body.get("name")), None if folder is None else Path(folder))
        except Refusal as error:
            return JSONResponse({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, 400)
        return JSONResponse(_describe(holder))

    return load
