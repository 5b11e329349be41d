"""The labelled messages that the rules judge learns from."""

import numpy as np

from recipes.judge import homework
from recipes.judge.compose import Composer
from recipes.judge.example import Example

HOMEWORK_DRAWS = 2
"""Draws of the homework an epoch: the scenes, of which there are many more, must not crowd it out."""


def load(seed: int = 0, rounds: int = 1) -> list[Example]:
    """One epoch's examples; the same seed gives the same ones.

    Another seed puts the hand-written messages into other contexts and fills the skeletons anew. `rounds` is how
    many rounds of scenes there are in it.
    """
    random = np.random.default_rng(seed)
    drawn = [example for _ in range(HOMEWORK_DRAWS) for example in homework.compose(random)]
    return [*drawn, *Composer(random, rounds).compose()]
