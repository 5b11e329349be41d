"""A real vLLM server as the engine of a run: its command and its environment, worked out from the settings.

The server listens on loopback with a random key and is ours alone: it may load adapters and update weights while it
serves. A judge with devices of its own (`PRM_GPUS`) gets a second server, without adapters, by the same code.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.context import choose_vllm_context
from clawrl_trl.engines.devices import VISIBLE, assign_devices, drop_allocator
from clawrl_trl.engines.families import family_of
from clawrl_trl.engines.vllm.cache_memory import digest_setting
from clawrl_trl.run import RunFolder

BASE_NAME = "base"
MAX_LOGPROBS = 128
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM can make room for."""
DEFAULT_RANK = 32
"""Room for adapters of this rank when neither a trainer nor a policy of the run says more."""
SHARED_MEMORY, OWN_MEMORY, LEAST_MEMORY = 0.45, 0.9, 0.01
"""Share of a device's memory for the engine: beside a trainer, alone, and where its cache has a size in bytes."""

NOWHERE = "none.invalid"
"""A domain that can't exist (RFC 2606): without any allowed domain, vLLM fetches from all."""

OURS = (
    "--middleware", "clawrl_trl.engines.vllm.policy.PolicyInPlace",
    "--middleware", "clawrl_trl.engines.vllm.guard.RequireKey",  # the last is the outermost
    "--worker-extension-cls", "clawrl_trl.engines.vllm.worker.WorkerExtension",
    "--disable-uvicorn-access-log", "--disable-fastapi-docs",
    "--scheduling-policy", "priority",  # chats before the scoring calls of `scoring`
)  # fmt: skip
"""Flags of every server of ours: a key for every route, policies exchanged in place, chats first."""

ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for updating weights; `guard` asks for the key there too
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed domain may not lead to another
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
"""What the server needs in its environment beside the key; a value the user has set is kept."""


@dataclass(frozen=True)
class Server:
    """One server to be started.

    Args:
        settings (`ServeSettings`): The run's settings, as they apply to this server.
        model (`str`): Folder or hub id of its model.
        served_name (`str`, defaults to `"base"`): The model's name in requests.
        adapters (`bool`, defaults to `True`): Whether it serves adapters too.
        devices (`str`, *optional*): Its `CUDA_VISIBLE_DEVICES`; `None` leaves it what this process has.
        fit_memory (`bool`, defaults to `False`): Take the longest context that the memory holds.
        cache_bytes (`int`, *optional*): Bytes of the KV cache on each device; by default a share of the memory.
    """

    settings: ServeSettings
    model: str
    served_name: str = BASE_NAME
    adapters: bool = True
    devices: str | None = None
    fit_memory: bool = False
    cache_bytes: int | None = None

    @classmethod
    def of_run(cls, settings: ServeSettings, model: str) -> "Server":
        """The run's engine."""
        return cls(settings, model, devices=assign_devices(settings).engine)

    @classmethod
    def of_judge(cls, settings: ServeSettings, model: str) -> "Server":
        """The judge's own engine, over all devices that are the judge's."""
        alone = replace(
            settings,
            rollout_gpus=settings.prm_gpus,
            vllm_tensor_parallel_size=settings.prm_gpus,
            vllm_data_parallel_size=1,
        )
        name = settings.judge_model or BASE_NAME
        return cls(alone, settings.judge_model or model, name, adapters=False, devices=assign_devices(settings).judge)

    def command(self, port: int) -> list[str]:
        """The command line, for a free port on loopback.

        Log-probs come back as processed, sampling defaults are neutral, and there is room for the adapters that the
        staleness bound allows, the newest, and one on its way in.
        """
        settings = self.settings
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        words += ["--served-model-name", self.served_name, "--host", "127.0.0.1", "--port", str(port)]
        context = choose_vllm_context(settings, self.model, fit_memory=self.fit_memory)
        words += ["--max-model-len", context, "--max-num-seqs", str(settings.max_running)]
        words += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", str(MAX_LOGPROBS)]
        # A model's own `generation_config` would truncate what a request leaves open, and truncated turns can't train.
        words += ["--generation-config", "vllm", "--dtype", _dtype(settings)]
        words += ["--allowed-media-domains", *(sorted(settings.media_domains) or [NOWHERE])]
        words += _adapters(settings) if self.adapters else []
        words += [*_placement(settings), *self._cache(), *family_of(self.model).arguments(), *OURS]
        # The user's flags last: of a flag that stands twice argparse takes the last.
        return [*words, *(settings.vllm_args or "").split()]

    def _cache(self) -> list[str]:
        if self.cache_bytes is not None:
            # vLLM would not start with less than its share free, though with these bytes it doesn't take it.
            return ["--kv-cache-memory-bytes", str(self.cache_bytes), "--gpu-memory-utilization", str(LEAST_MEMORY)]
        if is_cpu_build():
            return []
        default = OWN_MEMORY if self.settings.rollout_gpus else SHARED_MEMORY
        return ["--gpu-memory-utilization", str(self.settings.vllm_gpu_memory_utilization or default)]

    @property
    def setting(self) -> str:
        """Digest of what the size of its cache depends on."""
        values = {name: value for name, value in asdict(self.settings).items() if name.startswith(("vllm_", "max_"))}
        # `keep_policies` is room for adapters, which is taken from the cache's.
        counts = (self.settings.rollout_gpus, self.settings.keep_policies, os.environ.get("VLLM_CPU_KVCACHE_SPACE"))
        return digest_setting(self.model, self.served_name, self.devices or os.environ.get(VISIBLE), values, counts)

    def environment(self, key: str) -> dict[str, str]:
        """This process's environment, vLLM's switches, the server's devices, and the key."""
        ours = ENVIRONMENT | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}
        if Path(self.model).is_dir():
            ours["HF_HUB_OFFLINE"] = "1"
        # TRL quietens vLLM in whatever process imports it, and a trainer is where this one may come from.
        level = "DEBUG" if os.environ.get("VLLM_LOGGING_LEVEL") == "DEBUG" else "INFO"
        fixed = {"VLLM_API_KEY": key, "VLLM_LOGGING_LEVEL": level}
        # The user's environment wins over our defaults, and the key over both.
        devices = {} if self.devices is None else {VISIBLE: self.devices}
        return ours | drop_allocator(os.environ) | fixed | devices


def is_cpu_build() -> bool:
    """Return whether the vLLM that is installed is the one for CPUs."""
    with suppress(PackageNotFoundError):
        return bool(version("vllm-cpu"))
    return False


def adapter_rank(settings: ServeSettings) -> int:
    """Return the rank to make room for, 0 for none: the setting's, but no less than the run's policies have."""
    policy_ranks = list(_policy_ranks(RunFolder(settings.run)))
    if settings.vllm_max_lora_rank is None:
        needed = max(policy_ranks, default=DEFAULT_RANK)
    else:
        needed = max(settings.vllm_max_lora_rank, *policy_ranks, 0)
    return next((rank for rank in (0, *LORA_RANKS) if rank >= needed), needed)


def _policy_ranks(folder: RunFolder) -> Iterator[int]:
    for path in folder.policies.glob("*/adapter_config.json"):
        with suppress(OSError, ValueError):
            config = json.loads(path.read_text())
            yield max(int(config.get("r", 0)), *map(int, config.get("rank_pattern", {}).values()), 0)


def _adapters(settings: ServeSettings) -> list[str]:
    rank = adapter_rank(settings)
    if rank == 0:
        return []
    room = max(settings.max_staleness, settings.keep_policies) + 2
    words = ["--enable-lora", "--max-lora-rank", str(rank)]
    # Twice as many in main memory: a version that was pushed off the GPU comes back without reading the disk.
    return [*words, "--max-loras", str(room), "--max-cpu-loras", str(2 * room)]


def _dtype(settings: ServeSettings) -> str:
    # vLLM's own choice for a CPU is bfloat16, whose log-probs are further from the trainer's than need be.
    return "float32" if settings.vllm_dtype == "auto" and is_cpu_build() else settings.vllm_dtype


def _placement(settings: ServeSettings) -> list[str]:
    if is_cpu_build():
        return ["--enforce-eager"]
    split = settings.vllm_tensor_parallel_size
    copies = settings.vllm_data_parallel_size or max(1, settings.rollout_gpus // split)
    words = ["--tensor-parallel-size", str(split)]
    return [*words, "--data-parallel-size", str(copies)] if copies > 1 else words
