"""Parsing of a training script's flags, its YAML file and its preset into arguments."""

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from clawrl_trl.config.flags import (
    Values,
    build_arguments,
    list_flags,
    read_explicit_flags,
    read_file_values,
    read_mapping,
)
from clawrl_trl.config.idle_flags import IDLE_FLAGS, LOSS_FLAGS, refuse_idle
from clawrl_trl.config.old_flags import rename_flags, rename_variables
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.config.serving_arguments import CHAT_JUDGE, PRACTICE_JUDGE, ServingArguments
from clawrl_trl.engines.devices import narrow_trainer
from clawrl_trl.envs.runs.options import RANGE
from clawrl_trl.errors import UserError
from clawrl_trl.model_classes import import_model_classes
from clawrl_trl.script.arguments import ScriptArguments
from clawrl_trl.script.memory import find_revision
from clawrl_trl.script.precision import choose_dtype
from clawrl_trl.script.selection import Selection

if TYPE_CHECKING:
    from trl import ModelConfig

    from clawrl_trl.trainers import AsyncGRPOConfig

MAX_STEPS_HELP = (
    "Optimizer steps after which training ends. With --env it means --env_max_steps, for one release more, unless "
    "that is given too. -1: no end but that of the run."
)


def parse(
    argv: list[str], *, on_card: bool = False
) -> "tuple[ScriptArguments, AsyncGRPOConfig, ModelConfig, ServeSettings]":
    """Parse command line and YAML file into script, trainer and model arguments, and the serving settings.

    The command line is read once. A flag wins over the file, the file over the preset, and all of them over the
    defaults of the dataclasses, some of which are environment variables. The process is left the devices that train,
    unless it only plans.

    Args:
        argv: The command line without its first word.
        on_card: Whether to plan for a card that need not be there: types are those of a GPU, and no devices are dealt.

    Raises:
        UserError: For a mistake in one of them.
    """
    configs, model_kind = _load_kinds()
    # Which configuration there is follows from a flag: the parser knows the flags of all, and combine has them all.
    parser = _make_parser([ScriptArguments, configs["combine"], model_kind, ServingArguments])
    flags = read_explicit_flags(parser, argv)
    asks_for_help = flags.pop("help", False)
    file = read_file_values(parser, _read_config_file(flags.pop("config", None)), "The --config file")
    # Before anything reads a default: many are environment variables.
    os.environ.update(_read_variables({**file, **flags}.get("env_vars")))
    explicit = _rename_old_flags(file, flags)
    selection = Selection.of_flags(explicit)
    if selection.method not in configs:
        raise UserError(f"--method {selection.method!r} is unknown: use {', '.join(configs)}.")
    preset = selection.load_preset()
    defaults = preset.select_values(selection.method, with_env=selection.practises) if preset else {}
    values = {
        "output_dir": selection.default_folder,
        "judge": PRACTICE_JUDGE if selection.practises else CHAT_JUDGE,
        "vllm_gpu_memory_utilization": None,  # TRL has a share of its own, for a vLLM in the trainer's process
        **read_file_values(parser, defaults, f"--preset {selection.preset}"),
        **explicit,
        **{name: getattr(selection, name) for name in ("method", "env", "persona")},
    }
    if asks_for_help:
        parser.set_defaults(**values)
        parser.print_help()
        raise SystemExit(0)
    kinds = [ScriptArguments, configs[selection.method], model_kind, ServingArguments]
    if others := [name for name in values if name not in list_flags(kinds)]:
        raise UserError(f"--{others[0]} has no effect here: it is not for --method {selection.method}.")
    refuse_idle(values, IDLE_FLAGS, kinds)
    # Before the trainer's configuration, which asks CUDA for its devices: later none could be taken away.
    if not on_card:
        narrow_trainer(build_arguments([ServingArguments], values)[0])
    script, config, model, serving = build_arguments(kinds, values)
    losses = {name: f"it is for --loss_type {loss}" for name, loss in LOSS_FLAGS.items() if loss != config.loss_type}
    refuse_idle(values, losses, kinds)
    script.preset = preset.name if preset else None
    script.refuse_idle_flags(explicit)
    if config.support_coef and not config.beta and not model.use_peft:
        raise UserError("--support_coef needs a base to hold to: train an adapter, or set --beta above 0.")
    script.read_action_limit()
    choose_dtype(model, on_card=on_card)
    if selection.practises:
        _fit_to_environments(script, config, model, serving, values)
    settings = _make_serve_settings(config, model, serving)
    _refuse_other_revision(find_revision(config, model), settings)
    return script, config, model, settings


def _refuse_other_revision(revision: str | None, settings: ServeSettings) -> None:
    """Refuse a revision that the trainer would load and the run's engine would not.

    Raises:
        UserError: If the model comes from the Hub and the engine is started for the run.
    """
    name = settings.model_name_or_path
    if revision in (None, "main") or name is None or settings.is_remote or Path(name).expanduser().is_dir():
        return
    raise UserError(
        f"--model_revision {revision} is for the trainer alone, the engine would serve another revision of {name}: "
        f"load it with 'hf download {name} --revision {revision}' and give --model_name_or_path the folder it prints."
    )


def _load_kinds() -> tuple[dict[str, type], type]:
    """Return the trainers' configurations by method, and the arguments of the model; imports torch."""
    import_model_classes()
    from trl import ModelConfig

    from clawrl_trl.trainers import AsyncGRPOConfig, CombineConfig, OPDConfig

    @dataclass
    class ModelArguments(ModelConfig):  # type: ignore[misc]  # TRL has no types
        model_name_or_path: str | None = field(
            default_factory=lambda: os.environ.get("MODEL_PATH") or None,
            metadata={"help": "Causal language model: folder or hub id. Default: the bundled model."},
        )
        use_peft: bool = field(default=True, metadata={"help": "Train a LoRA adapter; false trains all weights."})
        lora_dropout: float = field(default=0.0, metadata={"help": "LoRA dropout."})
        lora_target_modules: list[str] | None = field(
            default_factory=lambda: ["all-linear"], metadata={"help": "LoRA target modules."}
        )

    return {"binary": AsyncGRPOConfig, "opd": OPDConfig, "combine": CombineConfig}, ModelArguments


def _fit_to_environments(
    script: ScriptArguments,
    config: "AsyncGRPOConfig",
    model: "ModelConfig",
    serving: ServingArguments,
    values: Values,
) -> None:
    """Fit the engine and the steps of a version to the environments that are played at a time.

    Raises:
        UserError: If there is no such environment, or a part of what it plays would be dropped as stale.
    """
    if "max_running" not in values:
        serving.max_running = max(serving.max_running, script.requests_at_once)
    # The bundled model's episodes end long before their limit, and its versions are small on purpose.
    if model.model_name_or_path is None:
        return
    wave = script.find_wave()
    if "publish_steps" not in values:
        config.publish_steps = wave.find_publish_steps(config.step_batch_size, config.max_staleness)
    wave.check(config.step_batch_size, config.publish_steps, config.max_staleness)


def _make_serve_settings(config: "AsyncGRPOConfig", model: "ModelConfig", serving: ServingArguments) -> ServeSettings:
    """Return the settings of serving what the trainer trains."""
    serving.teacher_top_k = max(serving.teacher_top_k or 0, getattr(config, "opd_top_k", 0))
    if serving.vllm_max_lora_rank is None:
        serving.vllm_max_lora_rank = model.lora_r if model.use_peft else 0
    return ServeSettings(
        **vars(serving),
        run=config.output_dir,
        model_name_or_path=model.model_name_or_path,
        dtype=model.dtype,
        max_staleness=config.max_staleness,
        temperature=config.temperature,
        vllm_gpu_memory_utilization=config.vllm_gpu_memory_utilization,
        vllm_tensor_parallel_size=config.vllm_tensor_parallel_size,
    )


def _make_parser(kinds: list[type]) -> Any:
    """Return the parser of all flags; those without effect are known to it, to be refused with the reason."""
    from transformers import HfArgumentParser

    class ScriptParser(HfArgumentParser):  # type: ignore[misc]  # transformers has no types
        def add_argument(self, *names: str, **options: Any) -> argparse.Action:
            name = options.get("dest", names[0].lstrip("-"))
            # transformers hands on the whole metadata of a field, and argparse takes no bounds.
            options = {key: value for key, value in options.items() if key not in RANGE}
            if name in IDLE_FLAGS:
                options["help"] = argparse.SUPPRESS
            elif name == "max_steps":
                options["help"] = MAX_STEPS_HELP
            action: argparse.Action = super().add_argument(*names, **options)
            return action

    # argparse would print its help at once, before file and preset are read.
    parser = ScriptParser(kinds, usage="%(prog)s [--config FILE] [FLAG ...]", add_help=False)
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags and their values.", default=None)
    parser.add_argument("-h", "--help", action="store_true", help="Show this help and the defaults that apply.")
    return parser


def _read_config_file(path: str | None) -> Values:
    """Read the YAML file of `--config`.

    Raises:
        UserError: If it can't be read.
    """
    try:
        content = yaml.safe_load(Path(path).read_text()) if path else {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--config {path} can't be read: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"--config {path} must be a YAML mapping of flags to values.")
    return rename_variables(content)


def _read_variables(value: object) -> dict[str, str]:
    return {name: str(content) for name, content in read_mapping("env_vars", value).items()}


def _rename_old_flags(file: Values, flags: Values) -> Values:
    """Return the values of file and command line, by the names that flags have now."""
    explicit = {**file, **flags}
    if Selection.of_flags(explicit).env is None:
        return explicit
    # A file of the last version stays one, whatever flags stand beside it.
    return {**rename_flags(file, beside=file), **rename_flags(flags, beside=explicit)}
