"""Picture of a run's learning curve: the persona's score of each first reply, and the policy version that wrote it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clawrl_trl.envs.chat.evaluation import EvalReport

WINDOW = 6
_INK, _LIKED, _DISLIKED, _CURVE, _VERSION, _BEFORE = "#22303c", "#2a9d6f", "#d1495b", "#1d6fa5", "#b8b0a2", "#9aa5b1"


def learning_curve(
    rows: Sequence[Mapping[str, Any]], before: "EvalReport", after: "EvalReport", path: str | Path
) -> None:
    """Draw the scores of first replies over the interactions, and the evaluation before and after.

    Args:
        rows (`Sequence[Mapping]`): Interactions in order, with `first_score` and `policy_version`.
        before (`EvalReport`): The evaluation before the first interaction.
        after (`EvalReport`): The evaluation after the last.
        path (`str` or `Path`): The PNG file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it keeps every figure, and looks for a display.
    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    curve, bars = figure.subplots(1, 2, width_ratios=(3.2, 1))
    _draw_curve(curve, rows)
    _draw_bars(bars, before, after)
    persona = rows[0].get("persona") if rows else None
    figure.suptitle(f"First replies to the {persona}" if persona else "First replies", color=_INK, fontsize=13)
    figure.savefig(path, format="png")


def compute_rolling_mean(scores: Sequence[float | None], window: int = WINDOW) -> list[float | None]:
    """Compute the mean of the last `window` scores at each place, missing ones left out."""
    means: list[float | None] = []
    for end in range(1, len(scores) + 1):
        recent = [score for score in scores[max(0, end - window) : end] if score is not None]
        means.append(sum(recent) / len(recent) if recent else None)
    return means


def _draw_curve(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    places = range(1, len(rows) + 1)
    scores = [row["first_score"] for row in rows]
    versions = axes.twinx()
    by_place = zip(places, (row["policy_version"] for row in rows), strict=True)
    served = [(place, version) for place, version in by_place if version is not None]
    if served:
        versions.step(*zip(*served, strict=True), where="mid", color=_VERSION, linewidth=1.4, label="policy version")
        versions.set_ylim(-0.4, max(version for _, version in served) * 1.25 + 0.6)
        versions.yaxis.set_major_locator(MaxNLocator(integer=True))
    versions.set_ylabel("policy version", color="#8a8275")
    versions.tick_params(colors="#8a8275")
    # A twin is drawn above its axes: lift the curve over the steps, and let them show through.
    axes.set_zorder(versions.get_zorder() + 1)
    axes.patch.set_visible(False)
    for value, colour, label in ((1.0, _LIKED, "in the wanted style"), (0.0, _DISLIKED, "not")):
        at = [place for place, score in zip(places, scores, strict=True) if score == value]
        axes.scatter(at, [value] * len(at), s=26, color=colour, label=label, zorder=3, clip_on=False)
    means = [float("nan") if mean is None else mean for mean in compute_rolling_mean(scores)]
    axes.plot(places, means, color=_CURVE, linewidth=2.2, label=f"mean of the last {WINDOW}")
    axes.set(xlabel="interaction", ylabel="score of the first reply", ylim=(-0.08, 1.08))
    axes.set_xlim(0, max(len(rows), 1) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [*axes.get_legend_handles_labels()[0], *versions.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False, fontsize=9)
    _hide_frame(axes)
    _hide_frame(versions)


def _draw_bars(axes: "Axes", before: "EvalReport", after: "EvalReport") -> None:
    for offset, report, colour, label in ((-0.2, before, _BEFORE, "before"), (0.2, after, _CURVE, "after")):
        values = (report.score, report.correct)
        bars = axes.bar([place + offset for place in (0, 1)], values, width=0.36, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.0%}" for value in values], fontsize=9, color=_INK, padding=2)
    axes.set_xticks((0, 1), ("style", "correct"))
    axes.set(ylim=(0, 1.12), title=f"{after.n} held-out problems")
    axes.title.set(fontsize=10, color=_INK)
    axes.set_yticks(())
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False, fontsize=9)
    _hide_frame(axes)
    axes.spines["left"].set_visible(False)


def _hide_frame(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c8cdd2")
