"""The labelled messages that the rules judge learns from."""

import numpy as np

from recipes.judge import homework
from recipes.judge.compose import Composer
from recipes.judge.example import Example


def load(seed: int = 0, more: bool = False) -> list[Example]:
    """One epoch's examples; the same seed gives the same ones.

    Another seed puts the hand-written messages into other contexts and fills the skeletons anew. `more` adds the
    scenes that the shipped weights were not trained on.
    """
    random = np.random.default_rng(seed)
    return [*homework.compose(random), *Composer(random, more).compose()]
