"""The learning curve is drawn for any run, the empty one included."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.envs.chat.evaluation import EvalReport
from clawrl_trl.envs.runs.learning_curve import WINDOW, compute_rolling_mean, learning_curve

SCORES = st.lists(st.sampled_from([0.0, 1.0, None]))


@pytest.mark.parametrize("count", [0, 1, 36])
def test_picture(tmp_path: Path, count: int) -> None:
    rows = [{"first_score": [0.0, 1.0, None][n % 3], "policy_version": [n // 4, None][n % 2]} for n in range(count)]
    learning_curve(rows, EvalReport(0.1, 0.9, 5, 5, 0, []), EvalReport(0.9, 0.9, 5, 5, 0, []), tmp_path / "curve.png")
    content = (tmp_path / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width >= 1200 and height >= 500


@given(SCORES)
def test_rolling_mean(scores: list[float | None]) -> None:
    means = compute_rolling_mean(scores)
    assert len(means) == len(scores)
    for end, mean in enumerate(means, start=1):
        last = [score for score in scores[:end][-WINDOW:] if score is not None]
        assert mean == (sum(last) / len(last) if last else None)
