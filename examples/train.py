"""Train a live agent's model on the chats it serves.

    accelerate launch examples/train.py                          # serve the bundled model, train on what arrives
    accelerate launch examples/train.py --persona student        # a simulated user teaches it, and we measure
    accelerate launch examples/train.py --config my_run.yaml     # flags from a file

Without `--persona` the script serves an OpenAI-compatible API and trains in the background until Ctrl-C. With it,
a scripted user plays `--interactions` chats through the same API, and the script evaluates on held-out problems
before and after, prints a table and writes `metrics.json`, `learning_curve.png` and the adapter.
"""

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
from clawrl_trl.envs.lesson import Lesson, PersonaRun, print_table
from clawrl_trl.envs.personas import persona as persona_named
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import DEFAULT_RUN, ServeSettings, ServingArguments

NICE = 10
"""Added to the trainer's priority number: on shared cores, serving comes first."""
BUNDLED = {
    "binary": {"learning_rate": 1e-3, "per_device_train_batch_size": 2, "batch_timeout": 5.0},
    "opd": {"learning_rate": 2e-3, "per_device_train_batch_size": 2, "batch_timeout": 5.0},
    "combine": {"learning_rate": 1e-3, "per_device_train_batch_size": 2, "batch_timeout": 5.0},
}
"""Defaults for the bundled model, which is far smaller than what the trainers' own defaults are made for."""


@dataclass
class ScriptArguments:
    """What to do, beside what the trainer, the model and the serving half are told."""

    method: str = field(default="combine", metadata={"help": "Credit: binary, opd (distillation) or combine."})
    persona: str | None = field(
        default=None, metadata={"help": "Simulated user that chats with the model: student or teacher."}
    )
    interactions: int = field(default=36, metadata={"help": "Interactions the persona plays, one problem each."})
    think_time: float = field(
        default=0.8, metadata={"help": "Mean seconds the persona takes to read a reply before it writes."}
    )
    eval_problems: int = field(default=50, metadata={"help": "Held-out problems of each evaluation."})
    custom_loss_function_path: str | None = field(
        default=None,
        metadata={"help": "Own loss, 'file.py:name', called as loss(trainer, model, inputs, default_loss)."},
    )
    rollout_function_path: str | None = field(
        default=None,
        metadata={"help": "Own rollout, 'file.py:name', called as rollout(client, persona, interactions, seed)."},
    )
    custom_generate_function_path: str | None = field(
        default=None,
        metadata={"help": "Own generation, 'file.py:name', called as generate(client, model, messages, **sampling)."},
    )

    def lesson(self, seed: int) -> Lesson:
        """What the persona plays."""
        assert self.persona is not None
        return Lesson(
            persona=self.persona,
            interactions=self.interactions,
            seed=seed,
            think_time=self.think_time,
            problems=self.eval_problems,
            rollout=self.rollout_function_path,
            generate=self.custom_generate_function_path,
        )


def parse(argv: list[str]) -> tuple[ScriptArguments, Any, Any, ServeSettings]:
    """Parse command line and YAML file into script, trainer and model arguments, and the serving settings."""
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
    chosen = _peek(argv)
    if chosen["method"] not in configs:
        raise UserError(f"--method {chosen['method']!r} is unknown: use {', '.join(configs)}.")
    parser = TrlParser((ScriptArguments, configs[chosen["method"]], ModelArguments, ServingArguments))
    defaults = BUNDLED[chosen["method"]] if chosen["model_name_or_path"] is None else {}
    parser.set_defaults(output_dir=_default_folder(chosen), **defaults)
    script, config, model, serving = parser.parse_args_and_config(argv)
    settings = ServeSettings(
        **vars(serving), run=config.output_dir, model_name_or_path=model.model_name_or_path, dtype=model.dtype
    )
    return script, config, model, settings


def _peek(argv: list[str]) -> dict[str, Any]:
    """The few values that decide which other flags and defaults there are."""
    import argparse

    import yaml

    names = {"method": "combine", "persona": None, "model_name_or_path": os.environ.get("MODEL_PATH") or None}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", *names):
        parser.add_argument(f"--{name}")
    given, _ = parser.parse_known_args(argv)
    try:
        file = yaml.safe_load(Path(given.config).read_text()) if given.config else {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--config {given.config} can't be read: {error}.") from None
    return {name: getattr(given, name) or (file or {}).get(name) or default for name, default in names.items()}


def _default_folder(chosen: dict[str, Any]) -> str:
    folder = os.environ.get("CLAWRL_RUN") or os.environ.get("CKPT_SAVE_DIR")
    return folder or (f"runs/{chosen['persona']}-{chosen['method']}" if chosen["persona"] else DEFAULT_RUN)


def check(script: ScriptArguments, settings: ServeSettings) -> Callable[..., Any] | None:
    """Load every callable the user brought, so that a mistake costs a line; returns the own loss."""
    if script.persona is not None:
        persona_named(script.persona)
    own = {
        script.rollout_function_path: ["client", "persona", "interactions", "seed"],
        script.custom_generate_function_path: ["client", "model", "messages"],
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
        callbacks=[update_lines()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def update_lines() -> Any:
    """A callback that prints one line for each update."""
    from tqdm import tqdm
    from transformers import TrainerCallback

    shown = {
        "samples": "{:.0f} samples",
        "score": "mean score {:+.2f}",
        "loss": "loss {:.3f}",
        "kl_to_base": "KL {:.3f}",
    }

    class UpdateLines(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and logs and "policy_version" in logs:
                facts = [form.format(logs[name]) for name, form in shown.items() if name in logs]
                tqdm.write(f"policy-v{logs['policy_version']:.0f}: {', '.join(facts)}")

    return UpdateLines()


def train_live(trainer: Any, base_url: str) -> None:
    """Train on whatever arrives, until a signal."""
    print(f"Training on the chats at {base_url}; Ctrl-C stops.", flush=True)
    os.nice(NICE)
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)


def train_with_persona(trainer: Any, run: PersonaRun, method: str) -> None:
    """Train while a persona chats, then evaluate and report."""
    source, interrupted = trainer.source, trainer.source.stop
    started = time.monotonic()
    with run:
        source.stop = lambda: interrupted() or run.over(source.ledger, trainer.needs)
        os.nice(NICE)
        trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    if interrupted():
        print(f"Interrupted after {len(run.played())} interactions; the same command goes on from there.")
        return
    metrics = run.report(source.ledger, trainer.policy_version, method=method, wall_s=time.monotonic() - started)
    print_table(metrics)


def main() -> int:
    """Run the script."""
    script, config, model, settings = parse(sys.argv[1:])
    loss = check(script, settings)
    stop = stop_on_signals()

    from accelerate import PartialState
    from rich.console import Console

    from clawrl_trl.credit import LedgerSource
    from clawrl_trl.ledger import Ledger
    from clawrl_trl.serve import connection_help

    state = PartialState()
    with foreground(), ExitStack() as stack:
        base_url = ""
        if state.is_main_process:
            stack.enter_context(trainer_of(RunFolder(settings.run)))
            with Console(stderr=True).status("Starting gateway, engine and judge"):
                base_url = stack.enter_context(served(settings))["base_url"]
            print(connection_help(settings, base_url), flush=True)
        state.wait_for_everyone()
        ledger = Ledger.open(settings.ledger_url or RunFolder(settings.run).ledger)
        source = LedgerSource(ledger, stop=stop.is_set)
        trainer = make_trainer(script, config, model, settings, source, loss)
        if script.persona is None or not state.is_main_process:
            train_live(trainer, base_url)
        else:
            run = PersonaRun(script.lesson(config.seed), settings, base_url)
            train_with_persona(trainer, run, script.method)
        trainer.save_model(config.output_dir)
        print(f"Policy version {trainer.policy_version}; adapter, policies and ledger are in {config.output_dir}.")
        if config.push_to_hub:
            trainer.push_to_hub(dataset_name=None)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
