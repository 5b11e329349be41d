"""The picture of an episode."""

from pathlib import Path

import pytest
from PIL import Image

from clawrl_trl.envs.gui.filmstrip import main

TASKS = Path(__file__).parents[2] / "examples" / "tasks" / "gui" / "train.jsonl"


@pytest.mark.browser
def test_it_shows_a_real_episode(tmp_path: Path) -> None:
    main(str(TASKS), "train-2-03-tab", str(tmp_path / "strip.png"))
    with Image.open(tmp_path / "strip.png") as strip:
        assert strip.width > 3 * 320 and 240 < strip.height < 2 * 240  # the start and two actions, in a row
        colours = strip.convert("RGB").getcolors(1 << 20)
    assert colours is not None and len(colours) > 50
