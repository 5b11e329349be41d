"""Python functions as tools, and the file that names tools."""

import json
import sys
import threading
from pathlib import Path

import pytest

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.toolcall import tools as tools_module
from clawrl_trl.envs.toolcall.tools import FunctionTools, map_tools
from clawrl_trl.envs.toolcall.tools_config import load_tools
from clawrl_trl.errors import UserError


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def fail(why: str) -> None:
    """Fail.

    Args:
        why: The reason.
    """
    if why == "exit":
        sys.exit(3)
    raise KeyError(why)


async def later(word: str) -> dict[str, str]:
    """Say a word later.

    Args:
        word: The word.
    """
    return {"word": word}


def test_the_schema_is_the_chat_apis() -> None:
    [schema] = FunctionTools(add).schemas
    assert schema["type"] == "function" and set(schema["function"]) == {"name", "description", "parameters"}
    assert schema["function"]["parameters"]["required"] == ["a"]
    assert schema["function"]["parameters"]["properties"]["b"] == {"type": "integer", "description": "The second."}


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("add", {"a": 1, "b": 2}, "3"),
        ("add", {"a": "4"}, "5"),
        ("later", {"word": "né"}, '{"word": "né"}'),
    ],
)
def test_a_call(name: str, arguments: dict[str, object], result: str) -> None:
    assert FunctionTools(add, later).open().call(name, arguments, 30.0) == result


@pytest.mark.parametrize("arguments", [{}, {"a": "one"}, {"a": 1, "c": 2}])
def test_arguments_that_do_not_fit_are_told(arguments: dict[str, object]) -> None:
    result = FunctionTools(add).call("add", arguments, 30.0)
    assert result.startswith("Error: the arguments don't fit: ") and ("a:" in result or "c:" in result)


@pytest.mark.parametrize(("why", "error"), [("no", "KeyError: 'no'"), ("exit", "SystemExit: 3")])
def test_what_a_function_raises_is_its_traceback(why: str, error: str) -> None:
    result = FunctionTools(fail).call("fail", {"why": why}, 30.0)
    assert result.startswith("Error: Traceback") and result.endswith(error)
    assert ", in fail" in result and "_run_function" not in result and "validate_call" not in result


def test_a_call_that_hangs_is_left_behind_and_too_many_break_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools_module, "MAX_HANGING", 2)
    gate = threading.Event()

    def hang() -> None:
        """Hang."""
        gate.wait(60)

    tools = FunctionTools(hang)
    for _ in range(2):
        assert tools.call("hang", {}, 0.05) == "Error: hang did not return within 0.05 s."
    with pytest.raises(WorldBroken, match="hang"):
        tools.call("hang", {}, 0.05)
    hanging = list(tools._hanging_threads)
    gate.set()
    for thread in hanging:
        thread.join(60)
    assert tools.call("hang", {}, 30.0) == "null"


def test_a_function_without_a_schema_is_the_users_mistake() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(UserError, match="'bare' can't be a tool"):
        FunctionTools(bare)


def test_two_tools_of_one_name_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="Two tools are called 'add'"):
        map_tools([FunctionTools(add), FunctionTools(add)])


def write_config(folder: Path, content: object) -> Path:
    path = folder / "tools.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_functions_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        'def half(x: int) -> float:\n    """Half.\n\n    Args:\n        x: It."""\n    return x / 2\n'
    )
    monkeypatch.setenv(
        "TOOLS_CONFIG", str(write_config(tmp_path, {"functions": ["mine.py:half", "base64:b64encode"]}))
    )
    with pytest.raises(UserError, match="'b64encode' can't be a tool"):
        load_tools()
    [toolset] = load_tools(write_config(tmp_path, {"functions": ["mine.py:half"]}))
    assert toolset.open().call("half", {"x": 3}, 30.0) == "1.5"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "must hold a JSON object"),
        ({"tools": []}, "unknown key 'tools'"),
        ({"functions": ["nowhere:f"]}, "no function 'nowhere:f'"),
        ({"functions": ["json:nothing"]}, "no function 'json:nothing'"),
        ({"mcpServers": {"a": {}}}, 'either a "command" or a "url"'),
        ({"mcpServers": {"a": {"command": "no-such-program"}}}, "'no-such-program' of 'a' is not installed"),
        ({"mcpServers": {"a": {"url": "http://x", "colour": 1}}}, "must be an object with only"),
        (
            {"mcpServers": {"a": {"url": "http://x", "headers": {"K": "${NO_SUCH_KEY}"}}}},
            "NO_SUCH_KEY, which is not set",
        ),
    ],
)
def test_a_wrong_config_is_the_users_mistake(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_tools(write_config(tmp_path, content))


@pytest.mark.sandbox
@pytest.mark.skipif(bool(diagnose_bubblewrap()), reason=f"needs bubblewrap: {diagnose_bubblewrap()}")
def test_limits_of_the_interpreter_in_a_config(tmp_path: Path) -> None:
    [toolset] = load_tools(write_config(tmp_path, {"code_interpreter": {"memory_mb": 100}}))
    tools = toolset.open()
    assert "MemoryError" in tools.call("code_interpreter", {"code": "x = b'1' * (200 << 20)"}, 60.0)
    tools.close()
    with pytest.raises(UserError, match="takes limits or true"):
        load_tools(write_config(tmp_path, {"code_interpreter": {"colour": 1}}))


def test_no_config_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLS_CONFIG", raising=False)
    with pytest.raises(UserError, match="set TOOLS_CONFIG"):
        load_tools()
    with pytest.raises(UserError, match="can't be read"):
        load_tools(tmp_path / "none.json")
