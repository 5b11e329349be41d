"""Worker process of math-verify, which may run out of time or memory and is ended then."""

import json
import os
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify


def main() -> None:
    """Answer each line of stdin: `{"answer": ..., "truth": ...}` with `{"same": ...}`."""
    answers = os.fdopen(os.dup(1), "w")
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):  # a library that prints must not write between the answers
        os.dup2(devnull, fd)
    for question in sys.stdin:
        pair = json.loads(question)
        answers.write(json.dumps({"same": are_equal(pair["answer"], pair["truth"])}) + "\n")
        answers.flush()


def are_equal(answer: str, truth: str) -> bool:
    """Return whether two answers are equal as mathematics."""
    kinds = [LatexExtractionConfig(), ExprExtractionConfig()]
    # Without time limits of its own: they are alarms, and the process that asks has one.
    gold, target = (parse(rf"\boxed{{{text}}}", kinds, parsing_timeout=None) for text in (truth, answer))
    return bool(verify(gold, target, timeout_seconds=None))


if __name__ == "__main__":
    main()
