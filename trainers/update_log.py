"""One line for each update: the version, what it was trained on, and how far it is from the base model."""

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from clawrl_trl.policy_names import name_policy

SHOWN = {
    "samples": "{:.0f} samples",
    "score": "mean score {:+.2f}",
    "loss": "loss {:.3f}",
    "kl_to_base": "KL {:.3f}",
}


class UpdateLines(TrainerCallback):  # type: ignore[misc]
    """Prints a line when a policy version was trained, on the main process."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if state.is_world_process_zero and logs and "policy_version" in logs:
            facts = [form.format(logs[name]) for name, form in SHOWN.items() if name in logs]
            # A plain print would break the trainer's progress bar.
            tqdm.write(f"{name_policy(round(logs['policy_version']))}: {', '.join(facts)}")
