"""What the environments' tests share."""

from collections.abc import Callable, Iterator

import pytest
from scripted_server import ScriptedServer, obedient


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(script: Callable[[list[dict[str, str]], int], str | int] = obedient, port: int = 0) -> ScriptedServer:
        servers.append(ScriptedServer(script, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
