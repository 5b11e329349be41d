"""Train a live agent's model on the chats it serves.

    accelerate launch examples/train.py                          # serve the bundled model, train on what arrives
    accelerate launch examples/train.py --persona student        # a simulated user chats with it, and we measure
    accelerate launch examples/train.py --env terminal           # it works on tasks, and we measure
    accelerate launch examples/train.py --config my_run.yaml     # flags from a file

Without `--persona` and `--env` the script serves an OpenAI-compatible API and trains in the background until Ctrl-C.
With `--persona`, or `--env chat`, a simulated user plays `--interactions` chats through the same API; with another
`--env` the model plays `--episodes` episodes of that environment's tasks. The script then evaluates on what was held
out, before and after, prints a table and writes `metrics.json` and the adapter.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.custom import load_callable
from clawrl_trl.engines.devices import place_weights, set_allocator
from clawrl_trl.engines.hub_access import require_model
from clawrl_trl.engines.launch import model_path
from clawrl_trl.envs.catalogue import find_task_folder, get_environment
from clawrl_trl.envs.chat.persona_file import persona as load_persona
from clawrl_trl.envs.runs.measured_run import MeasuredRun, print_table
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_run import PersonaRun
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.practice_run import PracticeRun
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.judge.custom import load_reward
from clawrl_trl.run import RunFolder
from clawrl_trl.script import CHAT, ScriptArguments, parse
from clawrl_trl.script.memory import UnknownShapeError, check_card, check_disk, find_revision
from clawrl_trl.script.outcome import check_versions, read_last_version
from clawrl_trl.script.precision import require_bitsandbytes
from clawrl_trl.serving.attach import attach_or_serve, claim_training, stop_on_signals, take_foreground

SHIPPED_TASKS = Path(__file__).parent / "tasks"
NICE = 10
"""Added to the trainer's priority number: on shared cores, serving comes first."""


def make_persona_options(script: ScriptArguments, config: Any) -> PersonaOptions:
    """Return the options of the persona's chats."""
    return PersonaOptions.of_arguments(script, seed=config.seed)


def make_practice_options(script: ScriptArguments, config: Any) -> PracticeOptions:
    """Return the options of practice.

    Raises:
        UserError: If there is no such environment or task set, or the method needs a teacher that it doesn't have.
    """
    assert script.env is not None
    get_environment(script.env)  # a wrong name is told before the task set that it would have
    update_samples = config.step_batch_size * config.publish_steps
    return PracticeOptions.of_arguments(
        script,
        tasks=str(find_task_folder(script.tasks, script.env, SHIPPED_TASKS)),
        hints=script.find_hint_needs(),
        seed=config.seed,
        update_samples=update_samples,
        lead=script.find_wave().find_lead(update_samples, config.max_staleness),
    )


def check(script: ScriptArguments, config: Any, model: Any, settings: ServeSettings) -> Callable[..., Any] | None:
    """Load every callable the user brought, so that a mistake costs a line; returns the own loss."""
    if model.load_in_4bit:
        require_bitsandbytes()
    if script.persona is not None:
        load_persona(script.persona)
    if script.env not in (None, CHAT):
        options = make_practice_options(script, config)
        if options.hints and not settings.hints:
            raise UserError(f"--method {script.method} needs hints: leave --hints on, or use --method binary.")
        options.load_environments("heldout")
    callables = {
        script.rollout_function_path: ["client", "persona", "interactions", "seed"],
        script.custom_generate_function_path: ["client", "model", "messages"],
        script.reward_function_path: ["episode"],
    }
    for spec, parameters in callables.items():
        if spec is not None:
            load_callable(spec, parameters=parameters)
    if settings.custom_rm_path is not None:
        load_reward(settings.custom_rm_path, make=False)
    if script.custom_loss_function_path is None:
        return None
    return load_callable(script.custom_loss_function_path, parameters=["trainer", "model", "inputs", "default_loss"])


def report_room(config: Any, model: Any, settings: ServeSettings) -> None:
    """Say where memory or disk are short, before anything is started, and what a named model will keep on the disk."""
    if os.environ.get("RANK", "0") != "0":
        return
    try:
        disk = check_disk(config, model, settings)
        findings = check_card(config, model, settings)
    except UnknownShapeError as error:
        print(f"{error} The run starts without a look at its room.", file=sys.stderr, flush=True)
        return
    for finding in [*findings, *([disk] if disk.status != "ok" or model.model_name_or_path else [])]:
        remedy = f": {finding.fix}" if finding.fix else ""
        print(f"{finding.name}: {finding.detail}{remedy}.", file=sys.stderr, flush=True)


def make_trainer(
    script: ScriptArguments, config: Any, model: Any, settings: ServeSettings, source: Any, loss: Any
) -> Any:
    """The method's trainer, on the run's ledger, publishing to the run's engine."""
    from transformers import PrinterCallback
    from trl import get_peft_config, get_quantization_config

    from clawrl_trl.engines.sync_client import SyncEngineClient
    from clawrl_trl.policies import FirstGate, PolicyStore, Publisher
    from clawrl_trl.tiny import MODEL_PATH
    from clawrl_trl.trainers import AsyncGRPOTrainer, CombineTrainer, OPDTrainer
    from clawrl_trl.trainers.update_log import UpdateLines

    folder = RunFolder(settings.run)
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **({} if config.use_cpu else place_weights()),
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
    trainer.save_model(trainer.args.output_dir)


def train_measured(trainer: Any, run: MeasuredRun[Any, Any], method: str) -> None:
    """Train while a persona chats or episodes are played, then evaluate and report."""
    source, interrupted = trainer.source, trainer.source.stop
    started = time.monotonic()
    with run:
        source.stop = lambda: interrupted() or run.is_over(source.ledger, trainer.needs)
        os.nice(NICE)
        trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    # All processes save together, so before this one evaluates alone.
    trainer.save_model(trainer.args.output_dir)
    if interrupted():
        played, _, _ = run.describe_progress(run.read_rows())
        print(f"Interrupted after {played} {run.title}; the same command goes on from there.")
        return
    metrics = run.write_report(source.ledger, trainer.policy_version, method=method, wall_s=time.monotonic() - started)
    print_table(metrics)


def make_measured_run(
    script: ScriptArguments, config: Any, settings: ServeSettings, base_url: str
) -> MeasuredRun[Any, Any]:
    """Return the run of the script's persona or environment."""
    if script.persona is not None:
        return PersonaRun(make_persona_options(script, config), settings, base_url)
    return PracticeRun(make_practice_options(script, config), settings, base_url)


def main() -> int:
    """Run the script."""
    set_allocator()
    script, config, model, settings = parse(sys.argv[1:])
    preset = f"preset {script.preset}" if script.preset else "no preset"
    loss = check(script, config, model, settings)
    require_model(model_path(settings), find_revision(config, model))
    report_room(config, model, settings)
    stop = stop_on_signals()

    from accelerate import PartialState
    from rich.console import Console
    from rich.markup import escape

    from clawrl_trl.credit import LedgerSource
    from clawrl_trl.ledger import Ledger
    from clawrl_trl.serving.connection import describe_connection, describe_judge
    from clawrl_trl.trainers.parallel.process_group import leave_process_group, wait_for_all

    state = PartialState()
    wait_for_all()  # while no process has anything else to do: this makes the group that they will wait in
    with take_foreground(), ExitStack() as stack:
        base_url = ""
        if state.is_main_process:
            stack.enter_context(claim_training(RunFolder(settings.run)))
            with Console(stderr=True).status("Starting gateway, engine and judge") as status:
                gateway = attach_or_serve(settings, lambda line: status.update(escape(line)))
                base_url = stack.enter_context(gateway)["base_url"]
            print(describe_connection(settings, base_url), flush=True)
            for line in describe_judge(RunFolder(settings.run)):
                print(line, flush=True)
            print(f"Training by {script.method} with {preset}; 'clawrl presets' lists what there is.", flush=True)
        wait_for_all()
        ledger = Ledger.open(settings.ledger_url or RunFolder(settings.run).ledger)
        source, before = LedgerSource(ledger, stop=stop.is_set), read_last_version(ledger)
        trainer = make_trainer(script, config, model, settings, source, loss)
        if (script.persona is None and script.env is None) or not state.is_main_process:
            train_live(trainer, base_url)
        else:
            train_measured(trainer, make_measured_run(script, config, settings, base_url), script.method)
        wait_for_all()
        if state.is_main_process:
            print(f"Policy version {trainer.policy_version}; adapter, policies and ledger are in {config.output_dir}.")
    del trainer
    leave_process_group()
    if state.is_main_process and (line := check_versions(ledger, before)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
