"""Memory of a run on its card and room on its disk, from the flags of the training script."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clawrl_trl.config.serving import DEFAULT_CONTEXT, ServeSettings
from clawrl_trl.doctor.card import LEAST_PASS, CardPlan
from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.machine import describe_growth, find_engine_type, name_width, nearest_folder
from clawrl_trl.doctor.memory import ENGINE_OVERHEAD, GIB, GRAPHS, QWEN3, USABLE, Plan, estimate
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.engines.context import cut_context, read_own_context
from clawrl_trl.engines.families import read_json
from clawrl_trl.engines.launch import model_path
from clawrl_trl.engines.vllm.server import OWN_MEMORY, SHARED_MEMORY
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder

if TYPE_CHECKING:
    from trl import ModelConfig

    from clawrl_trl.trainers import AsyncGRPOConfig

QUANTIZATIONS = {"--quantization", "-q"}
SAVERS = {"--cpu-offload-gb", "--kv-cache-dtype"}
SHARES = {"--gpu-memory-utilization", "--kv-cache-memory-bytes"}
"""Flags of vLLM's own, in `--vllm_args`, that change what it takes, and those that change its share of the card."""
SERVED = "flags of the engine are those of 'clawrl serve', which runs already"


class UnknownShapeError(UserError):
    """A model whose memory can't be reckoned: there is one, of an architecture that nothing here can count."""


def find_revision(config: "AsyncGRPOConfig", model: "ModelConfig") -> str | None:
    """The revision of the model that is trained."""
    revision: str | None = (config.model_init_kwargs or {}).get("revision", model.model_revision)
    return revision


def find_shape(config: "AsyncGRPOConfig", model: "ModelConfig", settings: ServeSettings) -> Shape:
    """The shape of the model that is served and trained.

    Raises:
        UserError: If there is no such model.
        UnknownShapeError: If its shape can't be counted.
    """
    name = settings.model_name_or_path or ""
    if known := _find_known(name):
        return known
    try:
        revision = find_revision(config, model)
        return Shape.of(model_path(settings), revision=revision, trust_remote_code=config.trust_remote_code)
    except OSError as error:
        raise UserError(f"The model {name} can't be read ({_first_line(error)}).") from None
    except ValueError as error:
        raise UnknownShapeError(f"The memory of {name} can't be reckoned ({_first_line(error)}).") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _find_known(name: str) -> Shape | None:
    """The shape of a model that is known without its config; all of these take our longest context."""
    return QWEN3.get(name.removeprefix("Qwen/")) if name.startswith("Qwen/") else None


def find_context(settings: ServeSettings) -> int:
    """Tokens of the longest conversation that is served."""
    if settings.max_model_len is not None:
        return settings.max_model_len
    own = None if _find_known(settings.model_name_or_path or "") else read_own_context(model_path(settings))
    return min(DEFAULT_CONTEXT, own or DEFAULT_CONTEXT)


def plan_on_card(config: "AsyncGRPOConfig", model: "ModelConfig", settings: ServeSettings, card: float) -> CardPlan:
    """Plan the run on a card of so many bytes, or on two where the engine has one of its own.

    Args:
        config: The trainer's configuration.
        model: What is trained.
        settings: How it is served.
        card: Bytes of a card.

    Raises:
        UserError: If the model's shape can't be found.
    """
    shape, context = find_shape(config, model, settings), find_context(settings)
    grows = settings.engine == "transformers"
    apart = settings.is_remote or (settings.engine == "vllm" and settings.rollout_gpus > 0)
    plan = Plan(
        method="lora" if model.use_peft else "full",
        engine=find_engine_type(settings),
        trainer="4bit" if model.load_in_4bit else name_width(model.dtype),
        rank=model.lora_r,
        slots=max(settings.max_staleness, settings.keep_policies) + 2 if model.use_peft else 0,
        reference=bool(config.beta) and not model.use_peft,
        checkpointing=config.gradient_checkpointing,
        engine_overhead=ENGINE_OVERHEAD - GRAPHS * ("--enforce-eager" in (settings.vllm_args or "")),
    )
    if grows and settings.max_model_len is None:
        need = estimate(shape, plan)
        context = cut_context(context, need.cached_token, USABLE * card - sum(need.engine.values()))
    longest = config.max_sample_tokens or context
    # A sample that is longer than a pass has a pass of its own; only another's engine may serve longer ones than ours.
    tokens = max(config.max_pass_tokens, longest if settings.is_remote else min(longest, context))
    return CardPlan(
        shape=shape,
        plan=replace(plan, micro_tokens=tokens),
        card=card,
        share=settings.vllm_gpu_memory_utilization or (OWN_MEMORY if apart else SHARED_MEMORY),
        context=context,
        least_cache=LEAST_PASS if grows else settings.max_model_len or LEAST_PASS,
        apart=apart,
        split=1 if grows else settings.vllm_tensor_parallel_size,
        grows=grows,
        guessed=_find_guessed(settings, apart=apart),
    )


def _find_guessed(settings: ServeSettings, *, apart: bool) -> frozenset[str]:
    """Whose memory the arithmetic can't know, of engine and trainer."""
    name = settings.model_name_or_path or ""
    if not _find_known(name) and read_json(model_path(settings), "config.json").get("quantization_config"):
        return frozenset({"engine", "trainer"})
    if settings.engine != "vllm":
        return frozenset()
    words = (settings.vllm_args or "").replace("=", " ").split()
    flags = {word.replace("_", "-") for word in words if word.startswith("-")}
    if flags & SHARES and not apart:
        return frozenset({"engine", "trainer"})
    quantised = bool(flags & QUANTIZATIONS) and "bitsandbytes" not in words
    return frozenset({"engine"}) if quantised or flags & (SHARES | SAVERS) else frozenset()


def check_card(config: "AsyncGRPOConfig", model: "ModelConfig", settings: ServeSettings) -> list[Finding]:
    """Check the run against the card that this process trains on; without one there is nothing to find.

    Returns:
        `list[Finding]`: What does not fit and yet lets the run go on.

    Raises:
        UserError: If the trainer could not make a step, or an engine that is to be started could not.
    """
    import torch

    # One process asks: to ask makes a context on the card, and the others train on other ones.
    if not torch.cuda.is_available() or os.environ.get("LOCAL_RANK", "0") != "0":
        return []
    serving = _find_serving(settings)
    card = plan_on_card(config, model, serving or settings, torch.cuda.get_device_properties(0).total_memory)
    findings = [finding for finding in card.judge() if finding.status != "ok"]
    if serving or settings.is_remote:
        findings = [finding for finding in findings if not finding.name.startswith("engine")]
    if serving:
        findings = [replace(each, fix=f"{each.fix}; {SERVED}") if each.fix else each for each in findings]
    # Weights that are divided among processes take less than this arithmetic knows of.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        for finding in findings:
            if finding.status == "fail":
                raise UserError(
                    f"This can't fit on {card.card / GIB:.0f} GiB ({finding.name}: {finding.detail}): {finding.fix}."
                )
    return findings


def _find_serving(settings: ServeSettings) -> ServeSettings | None:
    """How the run is served by somebody whom the trainer attaches to; `None` if nobody serves it yet."""
    if RunFolder(settings.run).read_announced("gateway") is None:
        return None
    return replace(ServeSettings.load(settings.run), model_name_or_path=settings.model_name_or_path)


def check_disk(config: "AsyncGRPOConfig", model: "ModelConfig", settings: ServeSettings) -> Finding:
    """Compare what the run will keep on its disk with the room there.

    Raises:
        UserError: If the model's shape can't be found.
    """
    shape = find_shape(config, model, settings)
    # Both are trained, and saved, in float32.
    weights = 4.0 * (shape.adapter(model.lora_r) if model.use_peft else shape.parameters)
    free = shutil.disk_usage(nearest_folder(Path(settings.run))).free
    versions, states = config.keep_versions, config.keep_training_states
    return describe_growth(weights, free, versions=versions, states=states, folder="--output_dir")
