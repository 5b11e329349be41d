"""The evaluation of a run, as far as it is published: numbers alone, by a list of names."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURES = ("score", "correct", "success")
"""Measures that `metrics.json` holds twice, from before and after training."""
ENVIRONMENTS = ("chat", "terminal", "gui", "swe", "toolcall")
COUNTS = ("eval_problems", "eval_episodes")


def read_evaluation(path: Path, version: int, *, newest: bool) -> dict[str, Any]:
    """Read the measures before and after training, of the version that was evaluated; empty for any other.

    Args:
        path: The run's `metrics.json`, which need not exist.
        version: The version that is published.
        newest: Take it for the evaluated one where the file, of an older release, names none.
    """
    try:
        metrics: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(metrics, Mapping) or metrics.get("policy_version", version if newest else None) != version:
        return {}
    pairs = {name: [metrics.get(f"{name}_before"), metrics.get(f"{name}_after")] for name in MEASURES}
    if pairs["score"] == pairs["success"]:
        del pairs["success"]  # a persona's run names one measure twice
    measures = {name: pair for name, pair in pairs.items() if all(map(_is_number, pair))}
    if not measures:
        return {}
    count = next((metrics[name] for name in COUNTS if _is_number(metrics.get(name))), None)
    return {"of": "persona" if "persona" in metrics else _environment(metrics), "count": count, "measures": measures}


def _environment(metrics: Mapping[str, Any]) -> str | None:
    # By a list: the name of a user's own environment may tell more than the user wants published.
    env = metrics.get("env")
    return env if env in ENVIRONMENTS else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
