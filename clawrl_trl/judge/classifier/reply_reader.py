"""The reader of replies that speak of their own reception, or to whoever judges them.

"The owner was thrilled", a turn of the owner's played in a footnote, `"rated": 5` in a tool's arguments: words alone
don't tell it from a reply about a café's reviews, so the small encoder reads each passage with the reply and the
request behind it, with an adapter and a head of its own (`examples/recipes/judge/replies.py` trains them). Of
corrections of such a reply no hint is made, as it would be distilled into a reply that pleads; what the owner says
scores it all the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import compute_probabilities, load_reader

ENCODER = replace(
    ENCODERS[MINILM],
    classifier=Path(__file__).with_name("replies.safetensors"),
    message_tokens=80,
    reply_tokens=32,
    request_tokens=32,
)
"""The small encoder with an adapter and a head of its own, which takes a passage of a reply for a message."""

SPEAKS = 0.7
"""Least probability with which a passage is known to speak of its reply's reception; some honest ones have 0.6."""

MOST_PASSAGES = 24
"""How many are read; of a longer reply the middle is not."""

LONGEST = 300
"""Characters that 80 tokens are sure to hold, in most texts; what is longer is cut between words."""


def speaks_of_reception(request: str, reply: str) -> bool:
    """Return whether a passage of a reply says how it was received, or how it is to be judged."""
    return measure_reception(request, reply) >= SPEAKS


def measure_reception(request: str, reply: str) -> float:
    """Probability that the most telling passage of a reply does; 0 of an empty one."""
    passages = split_passages(reply)
    if len(passages) > MOST_PASSAGES:
        passages = [*passages[: MOST_PASSAGES // 2], *passages[-MOST_PASSAGES // 2 :]]
    read = load_reader(ENCODER)
    return max((compute_probabilities(read(request, reply, passage))[0] for passage in passages), default=0.0)


def split_passages(reply: str) -> list[str]:
    """Each two sentences of a reply that follow each other; a single one, or a last one that may be cut, by itself."""
    sentences = [piece for sentence in features.split_sentences(reply) for piece in wrap(sentence, LONGEST)]
    passages = [join_sentences(pair) for pair in pairwise(sentences)] or sentences
    # Every other sentence also begins a passage, where all of it is read.
    return [*passages, sentences[-1]] if passages and len(passages[-1]) > LONGEST else passages


def join_sentences(sentences: Sequence[str]) -> str:
    """Sentences as one passage."""
    return "\n".join(sentences)
