"""math-verify's other end, in a process of its own: it may run away in time or memory, and then it is ended."""

import json
import os
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify


def main() -> None:
    """Answer each line of stdin: `{"answer": ..., "truth": ...}` with `{"same": ...}`."""
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        os.dup2(nothing, fd)
    for question in sys.stdin:
        asked = json.loads(question)
        answers.write(json.dumps({"same": same(asked["answer"], asked["truth"])}) + "\n")
        answers.flush()


def same(answer: str, truth: str) -> bool:
    """Return whether two answers are equal as mathematics."""
    kinds = [LatexExtractionConfig(), ExprExtractionConfig()]
    # Without time limits of its own: they are alarms, and the process that asks has one.
    read = [parse(rf"\boxed{{{one}}}", kinds, parsing_timeout=None) for one in (truth, answer)]
    return bool(verify(read[0], read[1], timeout_seconds=None))


if __name__ == "__main__":
    main()
