"""`TOOLS_CONFIG`: a JSON file of the tools that an environment offers.

```json
{
  "functions": ["my_package.tools:search", "tools.py:price"],
  "mcpServers": {
    "files": {"command": "python", "args": ["server.py"], "include": ["read"]},
    "web": {"url": "http://127.0.0.1:8000/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}
  },
  "code_interpreter": {"memory_mb": 512}
}
```
`mcpServers` is written as other MCP clients have it. Paths are relative to the file's folder, where servers also
run; `python` means the running Python; `${NAME}` in `env` and `headers` is taken from the environment, so that no
key need be written down.
"""

import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from clawrl_trl.envs.toolcall.tools import FunctionTools, Toolset
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json

_SHARED_LOCK = threading.Lock()
_SHARED: dict[Path, tuple[list[Toolset], int]] = {}
"""Toolsets in use in this process, with the number of their borrowers."""
_SERVER_KEYS = {"command", "args", "env", "cwd", "url", "headers", "include", "per_episode", "connect_timeout", "type"}


def load_tools(path: Path | str | None = None) -> list[Toolset]:
    """Load the toolsets that a configuration names; nothing is started yet.

    Args:
        path (`Path` or `str`, *optional*): The file; default: the environment variable `TOOLS_CONFIG`.

    Raises:
        UserError: If the file is missing or wrong, or names what is not there.
    """
    location = path or os.environ.get("TOOLS_CONFIG")
    if not location:
        raise UserError("No tools are configured: give the path of a JSON file, or set TOOLS_CONFIG.")
    file = Path(location).expanduser().resolve()
    config = _read_config(file)
    unknown = set(config) - {"functions", "mcpServers", "code_interpreter"}
    if unknown:
        raise UserError(f'{file}: unknown key {min(unknown)!r}; use "functions", "mcpServers", "code_interpreter".')
    toolsets: list[Toolset] = []
    if config.get("functions"):
        toolsets.append(FunctionTools(*(_load_function(name, file) for name in config["functions"])))
    for name, server in dict(config.get("mcpServers") or {}).items():
        toolsets.append(_make_server(name, server, file))
    if config.get("code_interpreter"):
        toolsets.append(_make_interpreter(config["code_interpreter"], file))
    return toolsets


def borrow_tools(path: Path | str) -> list[Toolset]:
    """Borrow the toolsets of a file, which all borrowers in this process share; return them with `return_tools`.

    Raises:
        UserError: See [`load_tools`].
    """
    file = Path(path).expanduser().resolve()
    with _SHARED_LOCK:
        toolsets, borrowers = _SHARED.get(file) or (load_tools(file), 0)
        _SHARED[file] = toolsets, borrowers + 1
    return toolsets


def return_tools(path: Path | str) -> None:
    """Give borrowed toolsets back; the last one to do so closes them."""
    file = Path(path).expanduser().resolve()
    with _SHARED_LOCK:
        toolsets, borrowers = _SHARED.pop(file)
        if borrowers > 1:
            _SHARED[file] = toolsets, borrowers - 1
            return
    for toolset in toolsets:
        toolset.close()


def _read_config(file: Path) -> Json:
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"The tools' configuration can't be read: {error}.") from None
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise UserError(f"{file} must hold a JSON object.")
    return config


def _load_function(name: str, file: Path) -> Callable[..., Any]:
    source, _, attribute = str(name).partition(":")
    try:
        module = _load_module(file.parent / source) if source.endswith(".py") else importlib.import_module(source)
        function: Callable[..., Any] = getattr(module, attribute)
    except (ImportError, AttributeError, OSError, ValueError, TypeError) as error:
        raise UserError(f'{file}: there is no function {name!r} ({error}); write "module:name".') from None
    return function


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"clawrl_tools_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_server(name: str, entry: object, file: Path) -> Toolset:
    from clawrl_trl.envs.toolcall.mcp_tools import McpServer

    if not isinstance(entry, Mapping) or set(entry) - _SERVER_KEYS:
        raise UserError(f"{file}: the MCP server {name!r} must be an object with only {sorted(_SERVER_KEYS)}.")
    server = {key: value for key, value in entry.items() if key != "type"}  # it follows from command or url
    if "command" in server:
        server["cwd"] = str((file.parent / server.get("cwd", ".")).resolve())
        # This interpreter and not the first on the path, which may lack the packages that the server needs.
        if server["command"] in ("python", "python3"):
            server["command"] = sys.executable
        if shutil.which(server["command"], path=None) is None:
            raise UserError(f"{file}: the command {server['command']!r} of {name!r} is not installed.")
    for key in ("env", "headers"):
        if key in server:
            server[key] = {name: _fill_variables(str(value), file) for name, value in server[key].items()}
    return McpServer(server.pop("command", None), **server)


def _fill_variables(value: str, file: Path) -> str:
    def look_up(match: "re.Match[str]") -> str:
        if match[1] not in os.environ:
            raise UserError(f"{file} uses the environment variable {match[1]}, which is not set: set it.")
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", look_up, value)


def _make_interpreter(limits: object, file: Path) -> Toolset:
    from clawrl_trl.envs.toolcall.code_interpreter import LIMITS, CodeInterpreter

    try:
        return CodeInterpreter(limits=replace(LIMITS, **limits) if isinstance(limits, Mapping) else LIMITS)
    except TypeError as error:
        raise UserError(f'{file}: "code_interpreter" takes limits or true ({error}).') from None
