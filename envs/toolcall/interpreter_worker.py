"""Worker process of the code interpreter, inside the sandbox: executes code in one namespace that lasts.

It needs nothing but the standard library. The output of the code and of its child processes goes to a file and from
there into the answer, so that nothing else is written to the stream of answers.
"""

import ast
import json
import os
import sys
import tempfile
import traceback
from typing import IO

KEPT_BYTES = 1 << 16
"""Bytes kept of the beginning and of the end of the output."""


def main() -> None:
    """Answer each line of stdin: `{"code": ...}` with `{"output": ..., "failed": ...}`."""
    answers = os.fdopen(os.dup(1), "w")
    questions = os.fdopen(os.dup(0), "r")
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(devnull, fd)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for question in questions:
        code = json.loads(question)["code"]
        with tempfile.TemporaryFile() as output_file:
            os.dup2(output_file.fileno(), 1)
            os.dup2(output_file.fileno(), 2)
            failed = not execute(code, namespace)
            for stream in (sys.stdout, sys.stderr):  # while their descriptors still lead to the file
                stream.flush()
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            output = read_ends(output_file)
        answers.write(json.dumps({"output": output, "failed": failed}) + "\n")
        answers.flush()


def execute(code: str, namespace: dict[str, object]) -> bool:
    """Run code and print the value of a last line that is an expression, as a notebook does; `False` if it raised."""
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), namespace)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the namespace must last
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this function's frame
        sys.stdout.flush()
        print("".join(traceback.format_exception(type(error), error, trace)).rstrip(), file=sys.stderr)
        return False
    return True


def read_ends(output_file: IO[bytes]) -> str:
    """Read the beginning and the end of the output."""
    size = output_file.seek(0, os.SEEK_END)
    output_file.seek(0)
    if size <= 2 * KEPT_BYTES:
        return output_file.read().decode(errors="replace")
    head = output_file.read(KEPT_BYTES)
    output_file.seek(size - KEPT_BYTES)
    return (head + b"\n[...]\n" + output_file.read()).decode(errors="replace")


if __name__ == "__main__":
    main()
