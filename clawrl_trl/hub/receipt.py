"""The training receipt: the data, settings and checksums of a published policy, in figures.

Counts, hyper-parameters and checksums; no text of a session, no path, no token. Names and values pass by a list here
too, whatever else the files hold that they are read from.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.hub.base_model import BaseModel
from clawrl_trl.hub.files import TRAINING_RECORD
from clawrl_trl.ledger import policies, samples
from clawrl_trl.ledger.schema import Batch, Policy, Sample, Session, Turn, Verdict

FORMAT = 1
PACKAGES = ("clawrl-trl", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
HYPER_PARAMETERS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size",
    "num_train_epochs", "max_steps", "seed", "bf16", "fp16", "loss_type", "beta", "epsilon", "epsilon_high",
    "num_iterations", "temperature", "importance_sampling", "importance_sampling_cap", "max_staleness",
    "baseline_window", "packing", "kl_estimator", "support_coef", "support_slack", "publish_steps",
    "batch_timeout", "max_kl", "opd_clip", "opd_top_k", "opd_accepted_prefix", "w_rl", "w_rl_alone", "w_opd",
)  # fmt: skip
"""Fields of the trainers' configurations that a receipt tells."""

_SLUG = re.compile(r"[A-Za-z][\w.+-]{0,63}")
_ADAPTER_FACTS = ("peft_type", "r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora", "bias")
_POLICY_METRICS = ("step", "samples", "kl_to_base")


def read_record(folder: Path) -> dict[str, Any]:
    """Read a policy folder's record of its training; empty for one of an older release."""
    try:
        record = json.loads((folder / TRAINING_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def make_receipt(
    folder: Path, base: BaseModel, record: Mapping[str, Any], policy: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Put a receipt together.

    Args:
        folder: A staged publication; its weights are hashed.
        base: Its base model.
        record: How it was trained, as in `training.json`.
        policy: Facts of its version, from `describe_policy`.
        data: Counts of what it was trained on.
    """
    adapter = folder / "adapter_config.json"
    config = json.loads(adapter.read_text(encoding="utf-8")) if adapter.is_file() else {}
    return {
        "format": FORMAT,
        "method": _as_plain(record.get("method")),
        "trainer": _as_plain(record.get("trainer")),
        "base_model": base.to_facts(),
        "policy": dict(policy),
        "data": dict(data),
        "hyper_parameters": _pick_listed(record.get("hyper_parameters"), HYPER_PARAMETERS),
        "adapter": _pick_listed(config, _ADAPTER_FACTS),
        "packages": _pick_listed(record.get("packages"), PACKAGES, versions=True),
        "weights": {path.name: _sha256(path) for path in sorted(folder.glob("*.safetensors"))},
    }


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Describe a version by its number, parent, age and figures."""
    return {
        "version": policy.version,
        "parent": policy.parent,
        "created_at": datetime.fromtimestamp(policy.created_at, UTC).isoformat(timespec="seconds"),
        **_pick_listed(policy.metrics, _POLICY_METRICS),
    }


def count_data(tx: Transaction, version: int) -> dict[str, Any]:
    """Count what the run collected, and of what a version and its ancestors were trained on."""
    line = policies.lineage(version, version)
    trained = select(Sample).join(Batch, Sample.batch_id == Batch.id).where(Batch.trained_into.in_(line)).subquery()
    sessions = select(func.count(Turn.session_id.distinct())).join(trained, trained.c.turn_id == Turn.id)

    def count(*conditions: ColumnElement[bool]) -> int:
        return tx.scalar(select(func.count()).select_from(trained).where(*conditions)) or 0

    return {
        "trained": {
            "versions": tx.scalar(select(func.count()).where(Policy.version.in_(line), Policy.version > 0)) or 0,
            "sessions": tx.scalar(sessions) or 0,
            "samples": count(),
            "scored_up": count(trained.c.score > 0),
            "scored_down": count(trained.c.score < 0),
            "with_teacher": count(trained.c.teacher_logprobs.is_not(None)),
        },
        "collected": {
            "sessions": _count_rows(tx, Session),
            "turns": _count_rows(tx, Turn),
            "verdicts": _count_rows(tx, Verdict),
            "abstentions": _count_rows(tx, Verdict, Verdict.score.is_(None)),
            "samples": samples.counts(tx),
        },
    }


def _count_rows(tx: Transaction, table: type[object], *conditions: ColumnElement[bool]) -> int:
    return tx.scalar(select(func.count()).select_from(table).where(*conditions)) or 0


def _pick_listed(values: object, names: tuple[str, ...], *, versions: bool = False) -> dict[str, Any]:
    """Pick the listed names with their values, as far as these are plain."""
    if not isinstance(values, Mapping):
        return {}
    values_by_name = {name: _as_plain(values[name], versions=versions) for name in names if name in values}
    return {name: value for name, value in values_by_name.items() if value is not None}


def _as_plain(value: object, *, versions: bool = False) -> bool | float | str | None:
    """Return a number, a truth value or one short word; `None` for anything else."""
    if isinstance(value, (bool, int, float)):
        return value if math.isfinite(value) else None  # JSON has no word for the others
    # One word and no slash: neither a sentence nor a path passes.
    pattern = re.compile(r"\d[\w.+!-]{0,40}") if versions else _SLUG
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
