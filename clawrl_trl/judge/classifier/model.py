"""The classifier of the owner's next message: approval, objection, or neither.

One to three encoders read the message with reply and request beside it (`reader`): the same words object after one
reply and begin something new after another. `examples/recipes/judge` makes adapters and heads from its labelled
messages. Nothing is loaded before the first message.

It reads English. A message in another language, or in several, gets no score (`language`), nor does a bare question
approve of anything, or object unless it is about the reply: who asks on may be content or puzzled.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import language, symbols
from clawrl_trl.judge.classifier import acceptance_reader, doubts, reader
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, MPNET, QWEN, list_up_to
from clawrl_trl.judge.classifier.reader import compute_probabilities

LABELS = (-1, 0, 1)


@dataclass(frozen=True)
class Margins:
    """How sure the classifier must be.

    Attributes:
        approval: Least difference of P(+1) and P(-1) with which it approves.
        objection: The same of an objection, which does more harm if it is wrong: it writes a hint, and distils the
            opposite of what was meant.
        neutral: Least P(0) with which it says that a message tells nothing of the reply.
    """

    approval: float = 0.5
    objection: float = 0.6
    neutral: float = 0.5


MARGINS = {MINILM: Margins(), MPNET: Margins(0.55, 0.65, 0.5), QWEN: Margins(0.6, 0.7, 0.5)}
"""By encoder; benchmarks/results/judge.md says on which sets they were chosen."""


@dataclass(frozen=True)
class Opinion:
    """The classifier's opinion of one message.

    Args:
        score: -1 objection, +1 approval or moving on, 0 a message that tells nothing of the reply, `None` when it
            can't tell.
        probabilities: Of -1, 0 and +1, in that order; all 0 of a message that was not read.
        reason: Why there is no score although the probabilities may speak for one; empty otherwise.
    """

    score: int | None
    probabilities: tuple[float, float, float]
    reason: str = ""


NOT_READ = Opinion(None, (0.0, 0.0, 0.0), "not English")


class Classifier:
    """The trained classifier of English messages.

    An encoder reads beside the smaller ones, and the weighted mean of their logits decides, which errs less than any.

    Args:
        encoder: Name of the encoder to read with, one of `ENCODERS`.

    Raises:
        UserError: If an encoder is missing and can't be had, or is not the published one.
    """

    def __init__(self, encoder: str = MINILM) -> None:
        names = list_up_to(encoder)
        self._readers = [reader.load_shared(name, in_ensemble=name != encoder) for name in names]
        self._weights = [ENCODERS[name].weight for name in names]
        self._margins = MARGINS[encoder]
        self._reads_acceptance = encoder == QWEN

    def __call__(self, request: str, response: str, message: str) -> Opinion:
        """The opinion on one message of the owner's, which followed `response` to `request`."""
        if not language.is_english(message, request):
            return NOT_READ
        read = [read_logits(request, response, message) for read_logits in self._readers]
        logits = np.average(read, axis=0, weights=self._weights)
        opinion = decide(logits, self._margins)
        if symbols.is_symbols(message):
            return replace(opinion, score=symbols.score_symbols(message), reason="nothing but symbols")
        if self._reads_acceptance:
            opinion = _settle(opinion, request, response, message)
        if opinion.score != 1 and doubts.takes_blame(message):
            return replace(opinion, score=0, reason="the owner takes the blame")
        doubt = doubts.find_doubt(request, response, message, opinion.score, opinion.probabilities[0])
        return replace(opinion, score=None, reason=doubt) if doubt else opinion


def _settle(opinion: Opinion, request: str, response: str, message: str) -> Opinion:
    """The opinion once the message's acceptance was read too."""
    taken = acceptance_reader.measure_acceptance(request, response, message)
    score = acceptance_reader.settle(opinion.score, opinion.probabilities, taken, message)
    doubted = score is None and opinion.score is not None
    return replace(opinion, score=score, reason="the reply may have been taken or not" if doubted else "")


def decide(logits: NDArray[np.float32], margins: Margins = MARGINS[MINILM]) -> Opinion:
    """Opinion of three logits, of -1, 0 and +1.

    A sign needs its margin and more than one half of the probability; otherwise it is 0, or it abstains.
    """
    minus, zero, plus = compute_probabilities(logits)
    winner, needed = (1, margins.approval) if plus > minus else (-1, margins.objection)
    is_sign = abs(plus - minus) >= needed and max(plus, minus) > 0.5
    score = winner if is_sign else 0 if zero >= margins.neutral else None
    return Opinion(score, (minus, zero, plus))


@lru_cache(maxsize=len(ENCODERS))
def load_shared(encoder: str = MINILM) -> Classifier:
    """The one classifier of this process with an encoder of `ENCODERS`, loaded at the first call."""
    return Classifier(encoder)
