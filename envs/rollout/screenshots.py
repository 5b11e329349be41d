"""The screenshots of a run's last episodes: `screenshots/SESSION/STEP.png` in the run folder, for people to look at.

They are taken from the observations, so that they are there also where the policy only reads text. Step 0 is what the
first reply answered, the last step what the episode ended with. Only the last episodes are kept.
"""

import logging
import shutil
import threading
from pathlib import Path

import torch
from PIL import Image
from tensordict import TensorDictBase

from clawrl_trl.run import RunFolder, make_private, open_private

logger = logging.getLogger(__name__)

KEPT_EPISODES = 200


class Screenshots:
    """Store of a run's screenshots; safe to use from many threads.

    Args:
        run (`str` or `Path`): The run folder.
        episodes (`int`, *optional*, defaults to `KEPT_EPISODES`): Episodes to keep.
    """

    def __init__(self, run: str | Path, episodes: int = KEPT_EPISODES) -> None:
        self._run = RunFolder(run)
        self._episodes = episodes
        self._lock = threading.Lock()

    def keep(self, state: TensorDictBase) -> None:
        """Keep the screenshot of an observation, if it has one."""
        picture = state.get("screenshot", None)
        if not isinstance(picture, torch.Tensor):
            return
        folder = self._run.find_screenshots(str(state["session_id"]))
        try:
            if not folder.is_dir():
                self._make_folder(folder)
            pixels = picture.permute(1, 2, 0).cpu().numpy()
            with open_private(folder / f"{int(state['step'])}.png", "wb") as file:
                Image.fromarray(pixels).save(file, format="PNG")
        except OSError as error:  # a full disk costs pictures, not the rollout
            logger.warning("a screenshot could not be kept: %s", error)

    def _make_folder(self, folder: Path) -> None:
        """Make an episode's folder, and remove those that were written to the longest ago."""
        with self._lock:
            make_private(folder.parent)
            make_private(folder)
            # A session's id says nothing about its age, so the time of the last write does.
            others = sorted((path for path in folder.parent.iterdir() if path != folder), key=_modified_at)
            for old in others[: max(0, len(others) + 1 - self._episodes)]:
                shutil.rmtree(old, ignore_errors=True)


def _modified_at(folder: Path) -> float:
    return folder.stat().st_mtime
