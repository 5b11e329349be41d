"""Hold a finished persona run against what the project promises: `python benchmarks/check_run.py DIR`.

Exits 1 and says what falls short. The thresholds are those of `benchmarks/personas.py`. A single run answers 50
problems, of which chance alone may fail two more than before; `--correctness_loss` makes room for that where one run
must decide.
"""

import argparse
import json
import sys
from pathlib import Path

from reporting import Row

SCORE_BEFORE = 0.3
SCORE_AFTER = 0.8
CORRECTNESS_LOSS = 0.02


def find_shortfalls(metrics: Row, correctness_loss: float = CORRECTNESS_LOSS) -> list[str]:
    """List what a run's metrics fall short in; empty when it passes."""
    shortfalls = []
    if metrics["score_before"] > SCORE_BEFORE:
        shortfalls.append(f"score before {metrics['score_before']:.2f} > {SCORE_BEFORE}")
    if metrics["score_after"] < SCORE_AFTER:
        shortfalls.append(f"score after {metrics['score_after']:.2f} < {SCORE_AFTER}")
    if metrics["correct_before"] - metrics["correct_after"] > correctness_loss + 1e-9:
        shortfalls.append(f"correctness fell from {metrics['correct_before']:.2f} to {metrics['correct_after']:.2f}")
    if metrics["failed_requests"]:
        shortfalls.append(f"{metrics['failed_requests']} requests failed")
    return shortfalls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--correctness_loss", type=float, default=CORRECTNESS_LOSS)
    arguments = parser.parse_args()
    metrics = json.loads((arguments.run / "metrics.json").read_text())
    shortfalls = find_shortfalls(metrics, arguments.correctness_loss)
    print("; ".join(shortfalls) or "the run passes")
    return 1 if shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
