"""Arguments of a training script, from its flags and YAML file.

`examples/train.py` is one such script; another may share its flags. The arguments say what to do, not how: nothing
here loads a model or starts a process. A flag that could have no effect is refused.
"""

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clawrl_trl.config.flags import read_flags
from clawrl_trl.config.presets import BUNDLED, NONE, Preset, load_preset
from clawrl_trl.config.serving import DEFAULT_RUN, ServeSettings, ServingArguments, check_ranges
from clawrl_trl.errors import UserError

TEACHING = ("opd", "combine")
"""Methods that train on a teacher's log-probs."""
CHAT = "chat"
"""The environment that a persona is."""
NUM_GENERATIONS = 8

AT_LEAST = {
    "interactions": 1,
    "think_time": 0,
    "eval_problems": 1,
    "difficulty": 1,
    "episodes": 1,
    "max_tokens": 1,
    "parallel_envs": 1,
    "num_generations": 1,
    "max_steps": 1,
}
"""Smallest usable values of the script's arguments."""
AT_MOST = {"difficulty": 3}
_PLUGINS = ("rollout_function_path", "custom_generate_function_path")
_OF_PERSONA = ("interactions", "think_time", *_PLUGINS)
_OF_PRACTICE = (
    "difficulty",
    "env_options",
    "episodes",
    "max_tokens",
    "prm_coef",
    "stepwise",
    "env_hints",
    "keep_screenshots",
    "reward_function_path",
)


@dataclass
class ScriptArguments:
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
        default=None, metadata={"help": "Simulated user that chats with the model: student, teacher or a YAML file."}
    )
    interactions: int = field(default=36, metadata={"help": "Interactions the persona plays, one problem each."})
    think_time: float = field(
        default=0.8, metadata={"help": "Mean seconds the persona takes to read a reply before it writes."}
    )
    eval_problems: int = field(default=50, metadata={"help": "Held-out problems, or episodes, of each evaluation."})
    env: str | None = field(
        default_factory=lambda: os.environ.get("ENV_TYPE") or None,
        metadata={"help": "Environment to practise in: terminal, gui, swe, toolcall or chat (a --persona)."},
    )
    tasks: str | None = field(
        default=None,
        metadata={"help": "Task set: a path, or the name of a shipped one; of chat: the persona. Default: its own."},
    )
    difficulty: int | None = field(default=None, metadata={"help": "Only tasks of this difficulty, 1 to 3."})
    env_options: str | None = field(
        default=None, metadata={"help": "Further arguments of the environment, JSON (in a YAML file: a mapping)."}
    )
    episodes: int = field(default=400, metadata={"help": "Episodes of the environment to play."})
    max_tokens: int = field(
        default=256, metadata={"help": "Longest reply in an episode, in tokens; a part of --max_model_len."}
    )
    parallel_envs: int = field(
        default_factory=lambda: int(os.environ.get("PARALLEL_ENVS") or 4),
        metadata={"help": "Environments at a time."},
    )
    prm_coef: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the steps' process scores in an environment's rewards: the environment's own, or with "
            "--judge llm those of the judge."
        },
    )
    stepwise: bool = field(
        default=False, metadata={"help": "Compare the rewards of a group of episodes step by step, not as wholes."}
    )
    env_hints: bool | None = field(
        default=None,
        metadata={
            "help": "Hints for a teacher in the words of the environment's own checker. Default: with --method opd or "
            "combine, where the environment has some."
        },
    )
    keep_screenshots: bool = field(
        default=False, metadata={"help": "Keep the screenshots of the last 200 episodes, for 'clawrl inspect'."}
    )
    custom_loss_function_path: str | None = field(
        default=None,
        metadata={"help": "Own loss, 'file.py:name', called as loss(trainer, model, inputs, default_loss)."},
    )
    rollout_function_path: str | None = field(
        default=None,
        metadata={"help": "Own rollout, 'file.py:name', called as rollout(client, persona, interactions, seed)."},
    )
    reward_function_path: str | None = field(
        default=None, metadata={"help": "Own reward of an episode, 'file.py:name', called as reward(episode)."}
    )
    custom_generate_function_path: str | None = field(
        default=None,
        metadata={"help": "Own generation, 'file.py:name', called as generate(client, model, messages, **sampling)."},
    )

    def __post_init__(self) -> None:
        check_ranges(vars(self), AT_LEAST, AT_MOST)
        self.num_generations = NUM_GENERATIONS
        self.max_steps: int | None = None

    def options(self) -> dict[str, Any]:
        """The further arguments of the environment: a mapping of a YAML file, or one in JSON of the command line.

        Raises:
            UserError: If they are neither.
        """
        given: Any = self.env_options
        try:
            read = json.loads(given) if isinstance(given, str) else given or {}
        except ValueError as error:
            raise UserError(f"--env_options is no JSON: {error}.") from None
        if not isinstance(read, dict):
            raise UserError("--env_options must be a mapping of names to values.")
        return read

    def hints_needs(self) -> tuple[str, ...]:
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
            known = ", ".join(name for name, one in BUILTIN_ENVIRONMENTS.items() if one.hints)
            raise UserError(
                f"--method {self.method} needs a teacher, and --env {self.env} has no hints for one ({known} has): "
                "use --method binary."
            )
        if self.env_hints is False:
            raise UserError(f"--method {self.method} needs --env_hints: leave them on, or use --method binary.")
        return ("teacher",) if self.method == "opd" else ("score", "teacher")

    def refuse_idle_flags(self) -> None:
        """Reject flags that would be ignored.

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
        elif practises:
            reasons |= dict.fromkeys(_PLUGINS, "the environment plays its episodes itself; it is for a --persona")
        if self.env is None:
            reasons["tasks"] = "it is for an --env"
        usual = {each.name: each.default for each in fields(self)}
        for name, reason in reasons.items():
            if getattr(self, name) != usual[name]:
                raise UserError(f"--{name} has no effect here: {reason}.")


def parse(argv: list[str]) -> tuple[ScriptArguments, Any, Any, ServeSettings]:
    """Parse command line and YAML file into script, trainer and model arguments, and the serving settings.

    With `--env`, `--num_generations` and `--max_steps` are the group's size and the most actions of an episode; how
    long there is training follows from `--episodes`.
    """
    from trl import ModelConfig, TrlParser

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

    configs = {"binary": AsyncGRPOConfig, "opd": OPDConfig, "combine": CombineConfig}
    file, argv = _config_file(argv)
    chosen = _peek(argv, file)
    if chosen["method"] not in configs:
        raise UserError(f"--method {chosen['method']!r} is unknown: use {', '.join(configs)}.")
    parser = TrlParser((ScriptArguments, configs[chosen["method"]], ModelArguments, ServingArguments))
    preset = _preset(chosen)
    values = preset.values(chosen["method"], practises=chosen["env"] not in (None, CHAT)) if preset else {}
    parser.set_defaults(method=chosen["method"], output_dir=_default_folder(chosen), vllm_gpu_memory_utilization=None)
    if unknown := parser.set_defaults_with_config(**values):
        raise UserError(f"--preset {chosen['preset']} sets what there is not: {', '.join(unknown[::2])}.")
    if unknown := parser.set_defaults_with_config(**file):
        raise UserError(f"The --config file sets what there is not: {', '.join(unknown[::2])}.")
    script, config, model, serving = read_flags(parser, argv)
    script.preset = preset.name if preset else None
    script.refuse_idle_flags()
    if config.support_coef and not config.beta and not model.use_peft:
        raise UserError("--support_coef needs a base to hold to: train an adapter, or set --beta above 0.")
    if script.env is not None:
        script.num_generations = _whole_number("num_generations", chosen["num_generations"])
        script.max_steps = None if chosen["max_steps"] is None else _whole_number("max_steps", chosen["max_steps"])
        check_ranges(vars(script), AT_LEAST)
        config.max_steps = -1
    if script.env == CHAT:
        script.persona = chosen["persona"]
    serving.teacher_top_k = max(serving.teacher_top_k, getattr(config, "opd_top_k", 0))
    if serving.vllm_max_lora_rank is None:
        serving.vllm_max_lora_rank = model.lora_r if model.use_peft else 0
    settings = ServeSettings(
        **vars(serving),
        run=config.output_dir,
        model_name_or_path=model.model_name_or_path,
        dtype=model.dtype,
        max_staleness=config.max_staleness,
        temperature=config.temperature,
        vllm_gpu_memory_utilization=config.vllm_gpu_memory_utilization,
        vllm_tensor_parallel_size=config.vllm_tensor_parallel_size,
    )
    return script, config, model, settings


def _config_file(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Read the YAML file of `--config`; returns its content and the other arguments.

    `env` names the environment; a mapping there sets environment variables, as in TRL's files.
    """
    import argparse

    import yaml

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    given, others = parser.parse_known_args(argv)
    try:
        file = yaml.safe_load(Path(given.config).read_text()) if given.config else {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--config {given.config} can't be read: {error}.") from None
    if not isinstance(file, dict):
        raise UserError(f"--config {given.config} must be a YAML mapping of flags to values.")
    if isinstance(file.get("env"), dict):
        os.environ.update({name: str(value) for name, value in file.pop("env").items()})
    return file, others


def _peek(argv: list[str], file: dict[str, Any]) -> dict[str, Any]:
    """The few values that decide which other flags and defaults there are."""
    import argparse

    names = {
        "env": os.environ.get("ENV_TYPE") or None,
        "method": None,
        "persona": None,
        "tasks": None,
        "preset": None,
        "model_name_or_path": os.environ.get("MODEL_PATH") or None,
        "num_generations": NUM_GENERATIONS,
        "max_steps": os.environ.get("MAX_STEPS") or None,
    }
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}")
    given, _ = parser.parse_known_args(argv)
    found = {name: getattr(given, name) or file.get(name) or default for name, default in names.items()}
    if found["env"] == CHAT:
        found["persona"] = found["persona"] or found["tasks"] or "student"
    return found | {"method": found["method"] or ("combine" if found["env"] in (None, CHAT) else "binary")}


def _preset(chosen: dict[str, Any]) -> Preset | None:
    """The preset that is named; without one, that of the bundled model where no other is named."""
    spec = chosen["preset"] or (BUNDLED if chosen["model_name_or_path"] is None else NONE)
    return None if spec == NONE else load_preset(spec)


def _whole_number(name: str, given: Any) -> int:
    try:
        return int(given)
    except ValueError:
        raise UserError(f"--{name} {given!r} is no whole number.") from None


def _default_folder(chosen: dict[str, Any]) -> str:
    folder = os.environ.get("CLAWRL_RUN") or os.environ.get("CKPT_SAVE_DIR")
    taught_by = Path(chosen["persona"]).stem if chosen["persona"] else chosen["env"]
    return folder or (f"runs/{taught_by}-{chosen['method']}" if taught_by else DEFAULT_RUN)
