"""The code interpreter: variables that last, code that is held in."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.toolcall.code_interpreter import CodeInterpreter, Interpreter

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]


@pytest.fixture
def interpreter() -> Iterator[Interpreter]:
    tools = CodeInterpreter(limits=Limits(memory_mb=256)).open()
    yield tools
    tools.close()


def run(interpreter: Interpreter, code: str, timeout: float = 60.0) -> str:
    return interpreter.call("code_interpreter", {"code": code}, timeout)


def test_variables_last(interpreter: Interpreter) -> None:
    assert run(interpreter, "x = 6") == ""
    assert run(interpreter, "print('so')\nx * 7") == "so\n42"


def test_an_episode_has_variables_of_its_own(interpreter: Interpreter) -> None:
    other = CodeInterpreter().open()
    run(interpreter, "x = 1")
    assert "NameError" in run(other, "x")
    other.close()


def test_parallel_calls_share_the_variables(interpreter: Interpreter) -> None:
    threads = [threading.Thread(target=run, args=(interpreter, f"x{n} = {n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert run(interpreter, "x0 + x1 + x2 + x3") == "6"


def test_an_error_is_a_traceback_of_the_code_alone(interpreter: Interpreter) -> None:
    output = run(interpreter, "def f():\n    return 1 / 0\nprint('before')\nf()")
    assert output.startswith("Error: before\nTraceback") and "ZeroDivisionError" in output
    assert "line 2, in f" in output and "execute" not in output
    assert "SyntaxError" in run(interpreter, "x =")
    assert "SystemExit" in run(interpreter, "import sys; sys.exit(3)")


def test_what_child_processes_print_is_seen(interpreter: Interpreter) -> None:
    assert run(interpreter, "import os; _ = os.system('echo hello; echo oops >&2')") == "hello\noops"


def test_code_that_takes_too_long_is_ended_and_the_next_call_works(interpreter: Interpreter) -> None:
    run(interpreter, "x = 1")
    assert "did not end within 2 s" in run(interpreter, "while True: pass", timeout=2.0)
    assert "NameError" in run(interpreter, "x")


@pytest.mark.parametrize(
    "code", ["import os; os._exit(0)", "x = b'1' * (1 << 30)", "import os; os.kill(os.getpid(), 9)"]
)
def test_code_that_ends_the_interpreter_is_an_observation(interpreter: Interpreter, code: str) -> None:
    assert run(interpreter, code).startswith("Error: ")
    assert run(interpreter, "1 + 1") == "2"


def test_no_file_of_the_host_and_no_network(interpreter: Interpreter, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    assert "FileNotFoundError" in run(interpreter, f"open({str(secret)!r}).read()")
    assert "OSError" in run(interpreter, "import socket; socket.create_connection(('1.1.1.1', 53), timeout=2)")


def test_endless_output_is_cut(interpreter: Interpreter) -> None:
    output = run(interpreter, "print('a' * 300_000 + 'z')")
    assert len(output) < 200_000 and output.endswith("z") and "[...]" in output


@pytest.mark.parametrize("arguments", [{}, {"code": 3}, {"code": "1", "more": 2}])
def test_wrong_arguments_are_an_observation(interpreter: Interpreter, arguments: dict[str, object]) -> None:
    assert interpreter.call("code_interpreter", arguments, 60.0).startswith("Error: the only argument")


def test_closing_leaves_no_folder() -> None:
    tools = CodeInterpreter().open()
    run(tools, "open('a', 'w').write('x')")
    folder = tools._sandbox.path
    assert (folder / "a").exists()
    tools.close()
    assert not folder.exists()
