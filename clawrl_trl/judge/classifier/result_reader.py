"""The reader of tool results that report no failure: whether the call brought what was asked.

"Draft saved" is what one request wanted and what another did not. Forms of failure don't tell it, so the small encoder
reads the result with the call and the request behind it, with an adapter and a head of its own
(`examples/recipes/judge/results.py` trains them). It only withholds an approval that the rules of `tools` would give,
makes none, and objects to nothing. It neither counts nor compares, so that three files where five were wanted pass.
"""

from dataclasses import replace
from pathlib import Path

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import MAX_CHARACTERS, compute_probabilities, load_reader
from clawrl_trl.judge.tools.results import ToolResult

ENCODER = replace(
    ENCODERS[MINILM],
    classifier=Path(__file__).with_name("results.safetensors"),
    message_tokens=160,
    reply_tokens=48,
    request_tokens=32,
)
"""The small encoder with an adapter and a head of its own; a result is longer than a message."""

LEAST_SUCCESS = 0.3
"""Least probability of having brought what was asked with which a result keeps its approval."""

BEGINNING, ENDING = 300, 400
"""Characters of a long result that are read."""


def measure_success(request: str, result: ToolResult) -> float:
    """Probability that a call brought what was asked, as far as its result tells."""
    return compute_probabilities(load_reader(ENCODER)(*arrange_texts(request, result)))[2]


def arrange_texts(request: str, result: ToolResult) -> tuple[str, str, str]:
    """Request, call and result as the encoder reads them: a long result by its beginning and its end."""
    text = result.text.strip()
    if len(text) > BEGINNING + ENDING:
        text = f"{text[:BEGINNING]} … {text[-ENDING:]}"
    # Of a file's text in the arguments the reader would keep the end, and lose the tool's name.
    return request, f"{result.name} {result.arguments}".strip()[:MAX_CHARACTERS], text
