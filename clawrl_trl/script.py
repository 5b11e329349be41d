"""Arguments of a training script, from its flags and YAML file.

`examples/train.py` is one such script; another may share its flags. The arguments say what to do, not how: nothing
here loads a model or starts a process. A flag that could have no effect is refused.
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
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
    read_number,
)
from clawrl_trl.config.idle_flags import IDLE_FLAGS, LOSS_FLAGS
from clawrl_trl.config.old_flags import rename_flags, rename_variables
from clawrl_trl.config.presets import BUNDLED, NONE, Preset, load_preset
from clawrl_trl.config.serving import DEFAULT_RUN, ServeSettings
from clawrl_trl.config.serving_arguments import ServingArguments
from clawrl_trl.envs.runs.options import RANGE, MeasuredArguments, check_declared_ranges
from clawrl_trl.envs.runs.persona_options import PersonaArguments
from clawrl_trl.envs.runs.practice_options import PracticeArguments
from clawrl_trl.errors import UserError

if TYPE_CHECKING:
    from trl import ModelConfig

    from clawrl_trl.trainers import AsyncGRPOConfig

TEACHING = ("opd", "combine")
"""Methods that train on a teacher's log-probs."""
CHAT = "chat"
"""The environment that a persona is."""

MAX_STEPS_HELP = (
    "Optimizer steps after which training ends. With --env it means --env_max_steps, for one release more, unless "
    "that is given too. -1: no end but that of the run."
)
_PLUGINS = ("rollout_function_path", "custom_generate_function_path")
_MEASURED = list_flags([MeasuredArguments])
_OF_PERSONA = [name for name in list_flags([PersonaArguments]) if name not in _MEASURED]
_OF_PRACTICE = ["env_hints", *(name for name in list_flags([PracticeArguments]) if name not in _MEASURED)]


@dataclass(kw_only=True)
class ScriptArguments(PersonaArguments, PracticeArguments):
    """Arguments of the script itself, beside those of the trainer, the model and the serving half."""

    method: str = field(
        default="combine",
        metadata={"help": "Credit: binary, opd (distillation) or combine. Default with --env: binary."},
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": "Defaults of the other flags: a name ('clawrl presets' lists them), a YAML file, or 'none'. "
            "Default: 'tiny' for the bundled model, none for others."
        },
    )
    persona: str | None = field(
        default=None,
        metadata={
            "help": "Simulated user that chats with the model: student, teacher, thumbs, noisy_student, curt, "
            "bilingual or a YAML file."
        },
    )
    env: str | None = field(
        default_factory=lambda: os.environ.get("ENV_TYPE") or None,
        metadata={"help": "Environment to practise in: terminal, gui, swe, toolcall or chat (a --persona)."},
    )
    tasks: str | None = field(
        default=None,
        metadata={"help": "Task set: a path, or the name of a shipped one; of chat: the persona. Default: its own."},
    )
    env_vars: dict[str, object] | str | None = field(
        default=None, metadata={"help": "Environment variables to set, JSON (in a YAML file: a mapping)."}
    )
    env_hints: bool | None = field(
        default=None,
        metadata={
            "help": "Hints for a teacher in the words of the environment's own checker. Default: with --method opd or "
            "combine, where the environment has some."
        },
    )
    custom_loss_function_path: str | None = field(
        default=None,
        metadata={"help": "Own loss, 'file.py:name', called as loss(trainer, model, inputs, default_loss)."},
    )

    def __post_init__(self) -> None:
        check_declared_ranges(self)

    def find_hint_needs(self) -> tuple[str, ...]:
        """Return what training on an environment's hints needs of a sample; empty without hints.

        Raises:
            UserError: If the method needs a teacher that there is not, or the hints would teach nobody.
        """
        from clawrl_trl.envs.catalogue import BUILTIN_ENVIRONMENTS, get_environment

        assert self.env is not None
        if self.method not in TEACHING:
            if self.env_hints:
                raise UserError(f"--env_hints has no effect with --method {self.method}: use --method combine or opd.")
            return ()
        if not get_environment(self.env).hints:
            those = ", ".join(name for name, entry in BUILTIN_ENVIRONMENTS.items() if entry.hints)
            raise UserError(
                f"--method {self.method} needs a teacher, and --env {self.env} has no hints for one ({those} has): "
                "use --method binary."
            )
        if self.env_hints is False:
            raise UserError(f"--method {self.method} needs --env_hints: leave them on, or use --method binary.")
        return ("teacher",) if self.method == "opd" else ("score", "teacher")

    def refuse_idle_flags(self, explicit: Mapping[str, Any]) -> None:
        """Reject flags that would be ignored.

        Args:
            explicit (`Mapping`): Values of the flags that the user has set.

        Raises:
            UserError: If a flag of a persona, or of an environment, is given without one.
        """
        practises = self.env not in (None, CHAT)
        if self.persona is not None and practises:
            raise UserError(f"--persona and --env {self.env} exclude each other: one teaches at a time.")
        live = self.persona is None and self.env is None
        reasons = dict.fromkeys(_OF_PERSONA if practises or live else (), "it is for a --persona")
        reasons |= dict.fromkeys(() if practises else _OF_PRACTICE, "it is for an --env other than chat")
        if live:
            reasons |= dict.fromkeys(
                _PLUGINS, "people's own clients ask and the engine answers; it is for a --persona"
            )
            reasons["eval_problems"] = "nothing is evaluated; it is for a --persona or an --env"
            reasons["env_max_steps"] = "it is for a --persona or an --env; see --max_steps for training"
        elif practises:
            reasons |= dict.fromkeys(_PLUGINS, "the environment plays its episodes itself; it is for a --persona")
        if self.env is None:
            reasons["tasks"] = "it is for an --env"
        _refuse_idle(explicit, reasons, [ScriptArguments])


@dataclass(frozen=True)
class _Selection:
    """The few values that decide which other flags and defaults there are."""

    method: str
    env: str | None
    persona: str | None
    preset: str | None
    model: str | None

    @classmethod
    def of_flags(cls, explicit: Mapping[str, Any]) -> "_Selection":
        env = explicit.get("env") or os.environ.get("ENV_TYPE") or None
        persona = explicit.get("persona")
        if env == CHAT:
            persona = persona or explicit.get("tasks") or "student"
        return cls(
            method=explicit.get("method") or ("combine" if env in (None, CHAT) else "binary"),
            env=env,
            persona=persona,
            preset=explicit.get("preset"),
            model=explicit.get("model_name_or_path") or os.environ.get("MODEL_PATH") or None,
        )

    @property
    def default_folder(self) -> str:
        folder = os.environ.get("CLAWRL_RUN") or os.environ.get("CKPT_SAVE_DIR")
        practice_name = Path(self.persona).stem if self.persona else self.env
        return folder or (f"runs/{practice_name}-{self.method}" if practice_name else DEFAULT_RUN)

    def load_preset(self) -> Preset | None:
        """Load the preset that is named; without one, that of the bundled model where no other model is named."""
        spec = self.preset or (BUNDLED if self.model is None else NONE)
        return None if spec == NONE else load_preset(spec)


def parse(argv: list[str]) -> "tuple[ScriptArguments, AsyncGRPOConfig, ModelConfig, ServeSettings]":
    """Parse command line and YAML file into script, trainer and model arguments, and the serving settings.

    The command line is read once. A flag wins over the file, the file over the preset, and all of them over the
    defaults of the dataclasses, some of which are environment variables.

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
    selection = _Selection.of_flags(explicit)
    if selection.method not in configs:
        raise UserError(f"--method {selection.method!r} is unknown: use {', '.join(configs)}.")
    preset = selection.load_preset()
    defaults = preset.select_values(selection.method, with_env=selection.env not in (None, CHAT)) if preset else {}
    values = {
        "output_dir": selection.default_folder,
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
    _refuse_idle(values, IDLE_FLAGS, kinds)
    script, config, model, serving = build_arguments(kinds, values)
    losses = {name: f"it is for --loss_type {loss}" for name, loss in LOSS_FLAGS.items() if loss != config.loss_type}
    _refuse_idle(values, losses, kinds)
    script.preset = preset.name if preset else None
    script.refuse_idle_flags(explicit)
    if config.support_coef and not config.beta and not model.use_peft:
        raise UserError("--support_coef needs a base to hold to: train an adapter, or set --beta above 0.")
    if script.env is not None and script.env_max_steps is None:
        script.env_max_steps = read_number("MAX_STEPS", None)
        check_declared_ranges(script)
    return script, config, model, _make_serve_settings(config, model, serving)


def _load_kinds() -> tuple[dict[str, type], type]:
    """Return the trainers' configurations by method, and the arguments of the model; imports torch."""
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


def _make_serve_settings(config: "AsyncGRPOConfig", model: "ModelConfig", serving: ServingArguments) -> ServeSettings:
    """Return the settings of serving what the trainer trains."""
    serving.teacher_top_k = max(serving.teacher_top_k, getattr(config, "opd_top_k", 0))
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
    if _Selection.of_flags(explicit).env is None:
        return explicit
    # A file of the last version stays one, whatever flags stand beside it.
    return {**rename_flags(file, beside=file), **rename_flags(flags, beside=explicit)}


def _refuse_idle(values: Mapping[str, Any], reasons: Mapping[str, str], kinds: list[type]) -> None:
    """Reject values of flags without effect, unless they are the defaults.

    Raises:
        UserError: For the first of them.
    """
    for each in (each for kind in kinds for each in fields(kind)):
        if each.name in values and each.name in reasons:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            # A file may spell out what is the default anyway: that misleads nobody.
            if values[each.name] != default:
                raise UserError(f"--{each.name} has no effect here: {reasons[each.name]}.")
