"""The reader of lessons: whether an owner's own words say how a reply should have been.

"The server is on 5.7" corrects a query, "line 3 fails" merely reports, and "please contact your administrator" is a
machine's demand. Patterns tell the words of a wish (`hints.patterns`), and not whose they are or how they are meant.
The language model can, by a head that `examples/recipes/judge/lessons.py` trains.
"""

from pathlib import Path

from clawrl_trl.judge.classifier.layer_head import LayerHead

HEAD = LayerHead(Path(__file__).with_name("lessons_qwen.safetensors"))
LEAST_LESSON = 0.3
"""Least probability of a lesson with which a hint is made."""


def holds_lesson(request: str, reply: str, words: str) -> bool:
    """Return whether an owner's English words say how the reply should have been."""
    return measure_lesson(request, reply, words) >= LEAST_LESSON


def measure_lesson(request: str, reply: str, words: str) -> float:
    """Probability that they do."""
    return HEAD.measure(request, reply, words)
