"""Parts that other packages add: their entry points, found by group and name, loaded when they are asked for.

A package adds an environment or a judge by an entry point of the group `clawrl_trl.envs` or `clawrl_trl.judges`; see
`CONTRIBUTING.md`.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from clawrl_trl.errors import UserError

ENVIRONMENTS = "clawrl_trl.envs"
"""Group of environments; each is a `clawrl_trl.envs.catalogue.EnvironmentEntry`."""

JUDGES = "clawrl_trl.judges"
"""Group of judges; each is called with the run's `ServeSettings` and returns a `clawrl_trl.judge.turn.Judge`."""


def plugin_names(group: str) -> list[str]:
    """Return the names of a group's parts, sorted; nothing is imported."""
    return sorted(point.name for point in entry_points(group=group))


def load_plugin(group: str, name: str) -> Any | None:
    """Import the part of that name; `None` if no installed package adds one.

    Raises:
        UserError: If several packages add one of that name, or it can't be imported.
    """
    points: list[EntryPoint] = list(entry_points(group=group, name=name))
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        places = " and ".join(sorted(point.value for point in points))
        raise UserError(f"{name!r} is added by several packages ({places}): uninstall one of them.")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"{name!r} can't be imported from {points[0].value}: {error}") from error
