"""The code interpreter's other end, run inside the sandbox: executes code in one namespace that lasts.

It needs nothing but the standard library. What the code prints, and what its child processes print, goes to a file
and from there into the answer, so that the answers' own stream stays clean.
"""

import ast
import json
import os
import sys
import tempfile
import traceback
from typing import IO

KEPT = 1 << 16
"""Bytes kept of the beginning and of the end of what is printed."""


def main() -> None:
    """Answer each line of stdin: `{"code": ...}` with `{"output": ..., "failed": ...}`."""
    answers = os.fdopen(os.dup(1), "w")
    questions = os.fdopen(os.dup(0), "r")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for question in questions:
        code = json.loads(question)["code"]
        with tempfile.TemporaryFile() as printed:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            failed = not execute(code, namespace)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            output = ends(printed)
        answers.write(json.dumps({"output": output, "failed": failed}) + "\n")
        answers.flush()


def execute(code: str, namespace: dict[str, object]) -> bool:
    """Run code; the value of a last line that is an expression is printed, as a notebook does."""
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), namespace)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the namespace must last
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.stdout.flush()
        print("".join(traceback.format_exception(type(error), error, trace)).rstrip(), file=sys.stderr)
        return False
    return True


def ends(printed: IO[bytes]) -> str:
    """The beginning and the end of what was printed."""
    size = printed.seek(0, os.SEEK_END)
    printed.seek(0)
    if size <= 2 * KEPT:
        return printed.read().decode(errors="replace")
    head = printed.read(KEPT)
    printed.seek(size - KEPT)
    return (head + b"\n[...]\n" + printed.read()).decode(errors="replace")


if __name__ == "__main__":
    main()
