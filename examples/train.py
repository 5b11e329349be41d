"""Train a live agent's model on the chats it serves.

    accelerate launch examples/train.py                          # serve the bundled model, train on what arrives
    accelerate launch examples/train.py --persona student        # a simulated user teaches it, and we measure
    accelerate launch examples/train.py --env terminal           # it works on tasks, and we measure
    accelerate launch examples/train.py --config my_run.yaml     # flags from a file

Without `--persona` and `--env` the script serves an OpenAI-compatible API and trains in the background until Ctrl-C.
With `--persona`, or `--env chat`, a simulated user plays `--interactions` chats through the same API; with another
`--env` the model plays `--episodes` episodes of that environment's tasks. The script then evaluates on what was held
out, before and after, prints a table and writes `metrics.json` and the adapter.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawrl_trl.attach import foreground, served, stop_on_signals, trainer_of
from clawrl_trl.custom import load_callable
from clawrl_trl.engines.devices import narrow_trainer
from clawrl_trl.envs.catalogue import setting, task_folder
from clawrl_trl.envs.course import PracticeRun
from clawrl_trl.envs.lesson import Lesson, PersonaRun
from clawrl_trl.envs.personas import persona as persona_named
from clawrl_trl.envs.practice import Practice
from clawrl_trl.envs.taught import TaughtRun, print_table
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import BUNDLED_TEMPERATURE, DEFAULT_RUN, ServeSettings, ServingArguments

SHIPPED_TASKS = Path(__file__).parent / "tasks"
CHAT = "chat"
"""The environment that a persona is."""
NUM_GENERATIONS = 8
NICE = 10
"""Added to the trainer's priority number: on shared cores, serving comes first."""
_BUNDLED = {"temperature": BUNDLED_TEMPERATURE, "per_device_train_batch_size": 2, "batch_timeout": 2.0}
BUNDLED = {
    "binary": {"learning_rate": 1e-3, "beta": 0.02, **_BUNDLED},
    "opd": {"learning_rate": 3e-3, "beta": 0.0, **_BUNDLED},
    "combine": {"learning_rate": 1.2e-3, "beta": 0.05, "w_rl": 0.65, **_BUNDLED},
}
"""Defaults for the bundled model, which is far smaller than what the trainers' own defaults are made for: it takes
larger steps, and scores alone, without some pull to the base, let it drift into another style by chance. A teacher is
a pull of its own: opd needs no other, and in combine the scores weigh less, which makes the pull to the base firmer
against them alone."""


@dataclass
class ScriptArguments:
    """What to do, beside what the trainer, the model and the serving half are told."""

    method: str = field(
        default="combine",
        metadata={"help": "Credit: binary, opd (distillation) or combine. Default with --env: binary."},
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
        self.num_generations = NUM_GENERATIONS
        self.max_steps: int | None = None

    def lesson(self, seed: int) -> Lesson:
        """What the persona plays."""
        assert self.persona is not None
        return Lesson(
            persona=self.persona,
            interactions=self.interactions,
            seed=seed,
            think_time=self.think_time,
            problems=self.eval_problems,
            max_turns=self.max_steps or Lesson.max_turns,
            rollout=self.rollout_function_path,
            generate=self.custom_generate_function_path,
        )

    def practice(self, seed: int) -> Practice:
        """What is practised.

        Raises:
            UserError: If there is no such environment or task set.
        """
        assert self.env is not None
        setting(self.env)
        return Practice(
            env=self.env,
            tasks=task_folder(self.tasks, self.env, SHIPPED_TASKS),
            difficulty=self.difficulty,
            episodes=self.episodes,
            num_generations=self.num_generations,
            parallel_envs=self.parallel_envs,
            max_steps=self.max_steps,
            seed=seed,
            env_options=_mapping(self.env_options),
            reward=self.reward_function_path,
            prm_coef=self.prm_coef,
            stepwise=self.stepwise,
            keep_screenshots=self.keep_screenshots,
        )


def parse(argv: list[str]) -> tuple[ScriptArguments, Any, Any, ServeSettings]:
    """Parse command line and YAML file into script, trainer and model arguments, and the serving settings.

    With `--env`, `--num_generations` and `--max_steps` are the group's size and the most actions of an episode; how
    long there is training follows from `--episodes`.
    """
    from trl import ModelConfig, TrlParser

    from clawrl_trl.trainers import AsyncGRPOConfig, CombineConfig, OPDConfig

    @dataclass
    class ModelArguments(ModelConfig):
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
    defaults = BUNDLED[chosen["method"]] if chosen["model_name_or_path"] is None else {}
    parser.set_defaults(
        method=chosen["method"], output_dir=_default_folder(chosen), vllm_gpu_memory_utilization=None, **defaults
    )
    if unknown := parser.set_defaults_with_config(**file):
        raise UserError(f"The --config file sets what there is not: {', '.join(unknown[::2])}.")
    script, config, model, serving = parser.parse_args_into_dataclasses(argv)
    if script.env is not None:
        script.num_generations, script.max_steps = int(chosen["num_generations"]), _number(chosen["max_steps"])
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
    """What the YAML file of `--config` says, and the arguments besides.

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


def _mapping(given: Any) -> dict[str, Any]:
    """A mapping of a YAML file, or one in JSON of the command line."""
    try:
        read = json.loads(given) if isinstance(given, str) else given or {}
    except ValueError as error:
        raise UserError(f"--env_options is no JSON: {error}.") from None
    if not isinstance(read, dict):
        raise UserError("--env_options must be a mapping of names to values.")
    return read


def _number(given: Any) -> int | None:
    return None if given is None else int(given)


def _default_folder(chosen: dict[str, Any]) -> str:
    folder = os.environ.get("CLAWRL_RUN") or os.environ.get("CKPT_SAVE_DIR")
    taught_by = Path(chosen["persona"]).stem if chosen["persona"] else chosen["env"]
    return folder or (f"runs/{taught_by}-{chosen['method']}" if taught_by else DEFAULT_RUN)


def check(script: ScriptArguments, settings: ServeSettings) -> Callable[..., Any] | None:
    """Load every callable the user brought, so that a mistake costs a line; returns the own loss."""
    if script.persona is not None and script.env not in (None, CHAT):
        raise UserError(f"--persona and --env {script.env} exclude each other: one teaches at a time.")
    if script.persona is not None:
        persona_named(script.persona)
    if script.env not in (None, CHAT):
        script.practice(0).worlds("heldout")
    own = {
        script.rollout_function_path: ["client", "persona", "interactions", "seed"],
        script.custom_generate_function_path: ["client", "model", "messages"],
        script.reward_function_path: ["episode"],
        settings.custom_rm_path: ["turn"],
    }
    for spec, parameters in own.items():
        if spec is not None:
            load_callable(spec, parameters=parameters)
    if script.custom_loss_function_path is None:
        return None
    return load_callable(script.custom_loss_function_path, parameters=["trainer", "model", "inputs", "default_loss"])


def make_trainer(
    script: ScriptArguments, config: Any, model: Any, settings: ServeSettings, source: Any, loss: Any
) -> Any:
    """The method's trainer, on the run's ledger, publishing to the run's engine."""
    from transformers import PrinterCallback
    from trl import get_peft_config, get_quantization_config

    from clawrl_trl.engines.client import SyncEngineClient
    from clawrl_trl.policies import FirstGate, PolicyStore, Publisher
    from clawrl_trl.tiny import MODEL_PATH
    from clawrl_trl.trainers import AsyncGRPOTrainer, CombineTrainer, OPDTrainer
    from clawrl_trl.trainers.update_lines import UpdateLines

    folder = RunFolder(settings.run)
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(config.model_init_kwargs or {}),
    }
    publisher = Publisher(
        source.ledger,
        PolicyStore(folder.policies),
        engine=SyncEngineClient.of_run(folder, settings),
        gate=FirstGate(max_kl=config.max_kl),
    )
    config.disable_tqdm = True  # a live run has no known length to show
    method = {"binary": AsyncGRPOTrainer, "opd": OPDTrainer, "combine": CombineTrainer}[script.method]
    trainer = method(
        model=model.model_name_or_path or str(MODEL_PATH),
        args=config,
        source=source,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
        publisher=publisher,
        custom_loss_function=loss,
        callbacks=[UpdateLines()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_live(trainer: Any, base_url: str) -> None:
    """Train on whatever arrives, until a signal."""
    print(f"Training on the chats at {base_url}; Ctrl-C stops.", flush=True)
    os.nice(NICE)
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)


def train_taught(trainer: Any, run: TaughtRun[Any], method: str) -> None:
    """Train while a persona chats or episodes are played, then evaluate and report."""
    source, interrupted = trainer.source, trainer.source.stop
    started = time.monotonic()
    with run:
        source.stop = lambda: interrupted() or run.over(source.ledger, trainer.needs)
        os.nice(NICE)
        trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    if interrupted():
        print(f"Interrupted after {run.shown(run.played())[0]} {run.title}; the same command goes on from there.")
        return
    metrics = run.report(source.ledger, trainer.policy_version, method=method, wall_s=time.monotonic() - started)
    print_table(metrics)


def taught(script: ScriptArguments, seed: int, settings: ServeSettings, base_url: str) -> TaughtRun[Any]:
    """The run that the script's persona or environment teaches."""
    if script.persona is not None:
        return PersonaRun(script.lesson(seed), settings, base_url)
    return PracticeRun(script.practice(seed), script.eval_problems, settings, base_url)


def main() -> int:
    """Run the script."""
    script, config, model, settings = parse(sys.argv[1:])
    narrow_trainer(settings)
    loss = check(script, settings)
    stop = stop_on_signals()

    from accelerate import PartialState
    from rich.console import Console
    from rich.markup import escape

    from clawrl_trl.credit import LedgerSource
    from clawrl_trl.ledger import Ledger
    from clawrl_trl.serve import connection_help
    from clawrl_trl.trainers.process_group import leave_process_group

    state = PartialState()
    with foreground(), ExitStack() as stack:
        base_url = ""
        if state.is_main_process:
            stack.enter_context(trainer_of(RunFolder(settings.run)))
            with Console(stderr=True).status("Starting gateway, engine and judge") as status:
                there = served(settings, lambda line: status.update(escape(line)))
                base_url = stack.enter_context(there)["base_url"]
            print(connection_help(settings, base_url), flush=True)
        state.wait_for_everyone()
        ledger = Ledger.open(settings.ledger_url or RunFolder(settings.run).ledger)
        source = LedgerSource(ledger, stop=stop.is_set)
        trainer = make_trainer(script, config, model, settings, source, loss)
        if (script.persona is None and script.env is None) or not state.is_main_process:
            train_live(trainer, base_url)
        else:
            train_taught(trainer, taught(script, config.seed, settings, base_url), script.method)
        trainer.save_model(config.output_dir)
        print(f"Policy version {trainer.policy_version}; adapter, policies and ledger are in {config.output_dir}.")
        if config.push_to_hub:
            trainer.push_to_hub(dataset_name=None)
    del trainer
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
