"""Tasks of the MiniWoB++ package (https://miniwob.farama.org), served from its files.

Each page generates a problem from a seed and computes the reward itself. Its clock is stopped, since the speed of a
policy is not scored. What the page displays for spectators (rewards, the clock, marks of clicks) is hidden, and the
instruction, which the agent has in its message, is not repeated in the outline.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from clawrl_trl.envs.gui.screen import Size
from clawrl_trl.envs.gui.tasks import WebTask
from clawrl_trl.errors import UserError

SIZE: Size = (160, 210)
FLIGHT_SIZE: Size = (375, 667)
"""Width and height of the pages about flights, which are copies of airlines' pages."""

_SETUP = """
core.EPISODE_MAX_TIME = 2147483647;
Math.seedrandom(%d);
core.startEpisodeReal();
for (const id of ["reward-display", "click-canvas"]) document.getElementById(id).style.display = "none";
document.getElementById("query").setAttribute("aria-hidden", "true");
"""
_ASK = "(told => told.utterance ?? told)(core.getUtterance())"
_OUTCOME = "WOB_DONE_GLOBAL ? Math.max(-1, Math.min(1, WOB_RAW_REWARD_GLOBAL)) : -1"


def miniwob_names() -> list[str]:
    """List all tasks of the package, such as `"click-button"` and `"flight.AA"`.

    Raises:
        UserError: If the package is missing.
    """
    html = _find_html()
    plain = [page.stem for page in (html / "miniwob").glob("*.html")]
    flights = [f"flight.{page.parent.name}" for page in (html / "flight").glob("*/wrapper.html")]
    return sorted(plain) + sorted(flights)


def miniwob_tasks(names: Sequence[str] | None = None, *, seeds: Sequence[int] = (0,)) -> list[WebTask]:
    """Build tasks for [`clawrl_trl.envs.gui.env.GUIEnv`].

    Args:
        names (`Sequence[str]`, *optional*): Their names; by default all but those about flights, whose screens are
            larger, so that they need an environment of their own.
        seeds (`Sequence[int]`, *optional*, defaults to `(0,)`): Each task is built with each seed.

    Raises:
        UserError: If there is no such task, or the package is missing.

    Examples:
        >>> env = GUIEnv(miniwob_tasks(["click-button", "enter-text"], seeds=range(10)), max_steps=10)
    """
    available = miniwob_names()
    names = [name for name in available if not name.startswith("flight.")] if names is None else names
    unknown = [name for name in names if name not in available]
    if unknown:
        raise UserError(f"MiniWoB++ has no task {unknown[0]!r}; miniwob_names() lists what it has.")
    return [_build_task(name, seed) for seed in seeds for name in names]


def _build_task(name: str, seed: int) -> WebTask:
    flight = name.startswith("flight.")
    return WebTask(
        id=f"{name}-{seed}",
        root=_find_html(),
        page=f"{name.replace('.', '/')}/wrapper.html" if flight else f"miniwob/{name}.html",
        ask=_ASK,
        setup=_SETUP % seed,
        ready="WOB_TASK_READY",
        checks=("WOB_DONE_GLOBAL && WOB_RAW_REWARD_GLOBAL > 0",),
        ends="WOB_DONE_GLOBAL",
        outcome=_OUTCOME,
        size=FLIGHT_SIZE if flight else SIZE,
    )


def _find_html() -> Path:
    """Find the package's pages without importing it, which would load all of gymnasium."""
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise UserError('MiniWoB++ is missing: pip install "clawrl-trl[envs]".')
    return Path(spec.submodule_search_locations[0]) / "html"
