"""Rewards that say nothing, for the controls of the other benchmarks: `--custom_rm_path controls.py:random_sign`."""

import random

from clawrl_trl.envs.rollout.episode import Episode
from clawrl_trl.judge.turn import JudgedTurn


def random_sign(turn: JudgedTurn) -> float:
    """A coin tossed by the turn's id: no information about the reply, the same on every retry."""
    return random.Random(turn.turn_id).choice((-1.0, 1.0))


def random_outcome(episode: Episode) -> float:
    """A coin tossed by the episode's id: no information about what was done."""
    return random.Random(episode.session_id).choice((-1.0, 1.0))
