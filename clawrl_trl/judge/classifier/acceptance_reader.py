"""The reader of acceptance: whether an owner who sounds pleased, or sour, took the reply or turned it down.

"Lovely, could it now be in Portuguese?" turns down a reply in English and takes one that nobody wanted in Portuguese;
"I see my mother has got into the app" mocks, and "I hate you, it's perfect" does not. Only request and reply tell
which it is. The language model knows in its middle layers: a head over one of them, which
`examples/recipes/judge/acceptance.py` trains, confirms or doubts the sign that the classifier reads.
"""

from pathlib import Path

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.encoders import MIDDLE
from clawrl_trl.judge.classifier.layer_head import LayerHead

HEAD = LayerHead(Path(__file__).with_name("acceptance_qwen.safetensors"), MIDDLE)

DOUBT = 0.3
"""An approval needs this probability that the reply was taken, and an objection that it was not."""
DOUBT_BESIDE_PRAISE = 0.5
"""An objection with a word of praise in it needs this probability that the reply was not taken."""
CONFIRMED = ((0.95, 0.3), (0.8, 0.55))
"""A sign that the classifier isn't sure of counts with such a probability of acceptance, and such a one by itself."""
MOST_NEUTRAL = 0.1
"""None does of words that may say nothing of the reply, nor of those that ask: who asks on may be content or not."""


def measure_acceptance(request: str, reply: str, words: str) -> float:
    """Probability that an owner's English words take the reply."""
    return HEAD.measure(request, reply, words)


def settle(score: int | None, probabilities: tuple[float, float, float], taken: float, words: str) -> int | None:
    """The score of an owner's words, now that their acceptance was read as well.

    Args:
        score: The classifier's; 0 stays, as acceptance tells nothing of what isn't about the reply.
        probabilities: The classifier's, of -1, 0 and +1.
        taken: Probability that they take the reply.
        words: The words.
    """
    minus, zero, plus = probabilities
    refused = 1 - taken
    least = DOUBT_BESIDE_PRAISE if features.CUES["approval"].search(words) else DOUBT
    if score is None and zero <= MOST_NEUTRAL and "?" not in words:
        sign, accepted, leaned = (1, taken, plus) if taken > 0.5 else (-1, refused, minus)
        score = sign if any(accepted >= sure and leaned >= lean for sure, lean in CONFIRMED) else None
    if score == 1 and taken < DOUBT:
        return None
    return None if score == -1 and refused < least else score
