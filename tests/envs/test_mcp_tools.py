"""MCP servers as tools: real ones, over stdio and streamable HTTP."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_processes import living_children

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.toolcall.mcp_tools import McpServer, _drop_titles
from clawrl_trl.envs.toolcall.tools_config import load_tools

SERVER = Path(__file__).parents[2] / "examples" / "tasks" / "toolcall" / "server.py"
ODD = """
import os, threading
from mcp import MCPError
from mcp.server import MCPServer
from mcp.types import ImageContent

server = MCPServer("odd", log_level="CRITICAL")
calls = []

@server.tool()
def count() -> int:
    '''Count the calls.'''
    calls.append(1)
    return len(calls)

@server.tool()
def die() -> str:
    '''Die.'''
    os._exit(1)

@server.tool()
def refuse(code: int) -> str:
    '''Refuse.'''
    raise MCPError(code, "out of cheese")

@server.tool()
async def hang() -> str:
    '''Hang.'''
    import anyio
    await anyio.sleep(60)
    return ""

@server.tool()
def picture() -> ImageContent:
    '''A picture.'''
    return ImageContent(type="image", data="aaaa", mime_type="image/png")

server.run()
"""


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[McpServer]:
    (tmp_path / "odd.py").write_text(ODD)
    server = McpServer(sys.executable, args=[str(tmp_path / "odd.py")], connect_timeout=120)
    yield server
    server.close()


@pytest.fixture(scope="module")
def home() -> Iterator[McpServer]:
    server = McpServer(sys.executable, args=[str(SERVER)], connect_timeout=120)
    yield server
    server.close()


def test_a_call_over_stdio(home: McpServer) -> None:
    tools = home.open()
    assert [schema["function"]["name"] for schema in tools.schemas] == ["light", "fan", "heat", "price", "multiply"]
    assert tools.schemas[0]["function"]["parameters"]["properties"] == {"value": {"type": "integer"}}
    assert tools.call("light", {"value": 7}, 60.0) == "light is 7"
    assert tools.call("multiply", {"a": 3, "b": 4}, 60.0) == "12"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [("price", {"item": "car"}, "no car here"), ("light", {"value": "x"}, "value"), ("nothing", {}, "nothing")],
)
def test_errors_are_told(home: McpServer, name: str, arguments: dict[str, object], said: str) -> None:
    result = home.open().call(name, arguments, 60.0)
    assert result.startswith("Error") and said in result


def test_only_the_tools_that_are_included() -> None:
    server = McpServer(sys.executable, args=[str(SERVER)], include=["fan"], connect_timeout=120)
    with contextlib.closing(server):
        assert [schema["function"]["name"] for schema in server.open().schemas] == ["fan"]


def test_one_server_serves_many_at_a_time(odd: McpServer) -> None:
    counted: list[str] = []
    threads = [threading.Thread(target=lambda: counted.append(odd.open().call("count", {}, 60.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(counted) == sorted(map(str, range(1, 9))) and len(living_children("odd.py")) == 1


def test_a_server_for_each_episode(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    server = McpServer(sys.executable, args=[str(tmp_path / "odd.py")], per_episode=True, connect_timeout=120)
    for _ in range(2):
        tools = server.open()
        assert tools.call("count", {}, 60.0) == "1"
        tools.close()
        assert not living_children("odd.py")


def test_a_call_that_hangs_is_told_and_the_server_goes_on(odd: McpServer) -> None:
    tools = odd.open()
    assert tools.call("hang", {}, 0.5) == "Error: hang did not return within 0.5 s."
    assert tools.call("count", {}, 60.0) == "1"


@pytest.mark.slow
@pytest.mark.parametrize("code", [-32603, -32600, -32000, 7])
def test_a_tool_that_fails_is_told_and_the_server_goes_on(odd: McpServer, code: int) -> None:
    tools, other = odd.open(), odd.open()
    assert other.call("count", {}, 60.0) == "1"
    assert tools.call("refuse", {"code": code}, 60.0) == "Error: out of cheese"
    assert other.call("count", {}, 60.0) == "2"


DEEP: dict[str, object] = {}
for _ in range(400):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(("name", "arguments"), [("count", {"a": "\ud800"}), ("count", DEEP), ("\ud800", {})])
def test_a_call_that_can_not_be_sent_is_told_and_the_server_goes_on(
    odd: McpServer, name: str, arguments: dict[str, object]
) -> None:
    tools, other = odd.open(), odd.open()
    assert "can't be called with" in tools.call(name, arguments, 60.0)
    assert other.call("count", {}, 60.0) == "1"


def test_what_is_not_text_is_named(odd: McpServer) -> None:
    assert odd.open().call("picture", {}, 60.0) == "[image/png]"


def test_a_server_that_dies_breaks_the_world_once_and_the_next_episode_has_another(odd: McpServer) -> None:
    tools = odd.open()
    assert tools.call("count", {}, 60.0) == "1"
    with pytest.raises(WorldBroken, match="Connection closed"):
        tools.call("die", {}, 60.0)
    with pytest.raises(WorldBroken):
        tools.call("count", {}, 60.0)
    assert odd.open().call("count", {}, 60.0) == "1"


def test_a_server_that_can_not_be_reached_breaks_the_world() -> None:
    with pytest.raises(WorldBroken, match=r"can.t be reached"):
        McpServer(sys.executable, args=["-c", "pass"]).open()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(WorldBroken, match=r"can.t be reached"):
            McpServer(url=f"http://127.0.0.1:{free.getsockname()[1]}/mcp", connect_timeout=60).open()


def test_closing_and_forgetting_end_the_server(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    for forget in (False, True):
        server = McpServer(sys.executable, args=[str(tmp_path / "odd.py")], connect_timeout=120)
        server.open().call("count", {}, 60.0)
        assert len(living_children("odd.py")) == 1
        if not forget:
            server.close()
        del server
        assert not living_children("odd.py")


@contextlib.contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(SERVER), "--port", str(port)])
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        assert process.poll() is None and time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.1)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_call_over_http_from_a_config(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MCP_KEY", "k")
    web = {
        "url": f"http://127.0.0.1:{port}/mcp",
        "type": "http",
        "headers": {"Authorization": "Bearer ${TEST_MCP_KEY}"},
    }
    (tmp_path / "tools.json").write_text(json.dumps({"mcpServers": {"web": web}}))
    [toolset] = load_tools(tmp_path / "tools.json")
    with contextlib.closing(toolset), serving(port):
        assert toolset.open().call("price", {"item": "milk"}, 60.0) == "7"
        assert toolset.open().call("price", {"item": "car"}, 60.0).startswith("Error")


def test_an_http_server_that_dies_breaks_the_world_and_one_that_comes_back_serves(port: int) -> None:
    server = McpServer(url=f"http://127.0.0.1:{port}/mcp", connect_timeout=120)
    with contextlib.closing(server):
        with serving(port):
            tools = server.open()
            assert tools.call("price", {"item": "milk"}, 60.0) == "7"
        with pytest.raises(WorldBroken, match="the MCP server"):
            tools.call("price", {"item": "milk"}, 60.0)
        with serving(port):
            assert server.open().call("price", {"item": "milk"}, 60.0) == "7"


def test_titles_are_left_out_and_a_property_of_that_name_is_not() -> None:
    schema = {
        "title": "A",
        "properties": {"title": {"title": "T", "type": "string"}, "b": {"anyOf": [{"title": "x"}]}},
    }
    assert _drop_titles(schema) == {"properties": {"title": {"type": "string"}, "b": {"anyOf": [{}]}}}
