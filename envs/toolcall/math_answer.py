r"""Grading of mathematical answers in a model's text.

The answer is what stands in the last `\boxed{}`, or else the last number. Equal numbers and unequal whole ones are
told apart here; all else goes to math-verify, which parses what a model wrote and may run away over it, so it works
in a process of its own, in the sandbox where there is one, with limits on time and memory.
"""

import atexit
import importlib.util
import re
import threading
from fractions import Fraction
from pathlib import Path

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.sandbox import Limits, Sandbox
from clawrl_trl.envs.sandbox.worker import Worker, WorkerLost
from clawrl_trl.errors import UserError

START = 120.0
"""Seconds that the process of math-verify may take to come up: a cold import is slow."""
TIMEOUT = 20.0
"""Seconds that a comparison may take."""
LONGEST = 500
"""Characters of an answer; a longer one is wrong."""

_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")
_GROUPED_NUMBER = re.compile(r"[-+]?\d{1,3}([, ]\d{3})+(\.\d+)?")
_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+/0*[1-9]\d*|\d+\.?\d*|\.\d+)")


def extract_final_answer(text: str) -> str | None:
    r"""Extract the answer of a text: the content of its last `\boxed{}`, else its last number, else `None`.

    Examples:
        >>> extract_final_answer(r"So it is \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
        >>> extract_final_answer("3 + 4 = 7.")
        '7'
    """
    boxed = _find_boxed(text)
    if boxed is not None:
        return boxed.strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "").replace("−", "-") if numbers else None


def is_right(answer: str | None, truth: str) -> bool:
    """Return whether an answer equals the true one as mathematics.

    Args:
        answer (`str`, *optional*): The result of [`extract_final_answer`].
        truth (`str`): A number or LaTeX.

    Raises:
        UserError: If neither is a plain number and math-verify is not installed.
        WorldBroken: If math-verify does not start; no answer is wrong for that.
    """
    if answer is None or len(answer) > LONGEST:
        return False
    if answer.strip() == truth.strip():
        return True
    numbers = _parse_number(answer), _parse_number(truth)
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return True
    # Other fractions are left to math-verify, which accepts a rounded 0.3333333333 for 1/3.
    if all(number is not None and number.denominator == 1 for number in numbers):
        return False
    return _VERIFIER.are_equal(answer, truth)


def require_math_verify() -> None:
    """Check that math-verify is installed.

    Raises:
        UserError: If it is missing.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise UserError('Checking answers needs the package math-verify: pip install "clawrl-trl[envs]".')


class _MathVerifier:
    """math-verify in one process for the whole program; one comparison at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._worker: Worker | None = None

    def are_equal(self, answer: str, truth: str) -> bool:
        with self._lock:
            worker = self._open()
            try:
                return bool(worker.ask({"answer": answer, "truth": truth}, TIMEOUT).get("same"))
            except WorkerLost:  # an answer that can't be compared in time is no right one
                self._close()
                return False

    def close(self) -> None:
        with self._lock:
            self._close()

    def _open(self) -> Worker:
        if self._worker is None:
            require_math_verify()
            backend = "none" if diagnose_bubblewrap() else "bubblewrap"  # it runs no code, it only may run away
            self._sandbox = Sandbox(limits=Limits(memory_mb=1024, cpu_s=3600), backend=backend)
            self._worker = Worker(self._sandbox, Path(__file__).with_name("math_worker.py"))
            try:  # a trivial question first: a slow start must not make the first answer wrong
                self._worker.ask({"answer": "1", "truth": "1"}, START)
            except WorkerLost as error:
                self._close()
                raise WorldBroken(f"math-verify does not start: {error}") from None
        return self._worker

    def _close(self) -> None:
        if self._worker is not None and self._sandbox is not None:
            self._worker.close()
            self._sandbox.close()
        self._worker = self._sandbox = None


_VERIFIER = _MathVerifier()
close = _VERIFIER.close
"""End the process of math-verify, if there is one; it starts again when it is needed."""
atexit.register(close)


def _find_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


def _parse_number(text: str) -> Fraction | None:
    digits = text.strip().strip("$").strip().replace("−", "-").rstrip(".")
    if _GROUPED_NUMBER.fullmatch(digits):
        digits = digits.replace(",", "").replace(" ", "")
    return Fraction(digits) if _PLAIN_NUMBER.fullmatch(digits) else None
