"""The gate: what a candidate must show before it serves anybody.

The first gate asks three things that no useful adapter fails: its files load, every weight is finite, and on the
replies it was trained on it still speaks much like the base model. The last is a mean over tokens of the exact
KL divergence, so that a learned style (a large divergence on a few tokens) passes and a ruined model does not.
Whoever wants more passes an own `Gate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clawrl_trl.policies.checksums import WEIGHT_FILES


@dataclass(frozen=True)
class GateReport:
    """Findings of a gate.

    Args:
        passed: Whether the candidate may serve.
        reason: One line, when it may not.
        metrics: Figures to keep with the version.
    """

    passed: bool
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A version that wants to serve.

    Args:
        version: Its number.
        folder: Its folder, complete and final.
        kl: Mean KL(candidate || base) over tokens of its batch, in nats per token; `None` when it was not measured
            (full fine-tuning without a reference model).
        model: The trained model in memory, when the gate runs inside the trainer.
    """

    version: int
    folder: Path
    kl: float | None = None
    model: Any = None


class Gate(Protocol):
    """Decides whether a candidate may serve."""

    def check(self, candidate: Candidate) -> GateReport:
        """Look at the candidate; must not change it."""


class FirstGate:
    """The gate every version passes: it loads, it is finite, it stays near the base.

    Args:
        max_kl: Bound on the mean KL divergence to the base, in nats per token. `None`: no bound.
        also: A further check, asked when the others passed.
    """

    def __init__(self, *, max_kl: float | None = 1.0, also: Callable[[Candidate], GateReport] | None = None) -> None:
        self.max_kl = max_kl
        self.also = also

    def check(self, candidate: Candidate) -> GateReport:
        metrics = {} if candidate.kl is None else {"kl_to_base": candidate.kl}
        reason = _unreadable(candidate.folder) or self._too_far(candidate.kl)
        if reason is None and self.also is not None:
            report = self.also(candidate)
            return GateReport(report.passed, report.reason, {**metrics, **report.metrics})
        return GateReport(reason is None, reason, {name: value for name, value in metrics.items() if value == value})

    def _too_far(self, kl: float | None) -> str | None:
        if kl is None:
            return None
        if not math.isfinite(kl):
            return "the model's answers are not finite"
        if self.max_kl is not None and kl > self.max_kl:
            return f"too far from the base: {kl:.2f} nats per token, the bound is {self.max_kl:.2f}"
        return None


def _unreadable(folder: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    files = [path for path in sorted(folder.glob("*.safetensors")) if path.name in WEIGHT_FILES or "-of-" in path.name]
    if not files or not any((folder / name).is_file() for name in ("adapter_config.json", "config.json")):
        return "no weights or no config in its folder"
    count = 0
    for path in files:
        try:
            with safe_open(path, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    count += 1
                    # A tensor at a time: a whole model need not fit into memory once more.
                    if not bool(weights.get_tensor(name).isfinite().all()):
                        return f"{name} is not finite"
        except (SafetensorError, OSError) as error:
            return f"{path.name} does not load: {error}"
    return None if count else "no weights in its files"
