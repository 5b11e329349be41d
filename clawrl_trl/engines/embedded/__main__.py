"""`python -m clawrl_trl.engines.embedded --run DIR`: serve the model of a run folder on a free loopback port.

Says where it listens in `DIR/engine.json`, once it does. Ends with status 2 and one line for a mistake of the user.
"""

import argparse
import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable

import uvicorn

from clawrl_trl.engines.launch import model_path
from clawrl_trl.errors import run_main
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported

SWITCH_INTERVAL = 0.0005
"""Seconds a busy event loop may keep the decoding thread from going on; Python's default is 0.005."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.engines.embedded", description="The embedded engine.")
    parser.add_argument("--run", required=True, help="run folder with a config.json")
    run = parser.parse_args(arguments).run
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return run_main(lambda: asyncio.run(serve(run)))


async def serve(run: str) -> None:
    """Load the model, announce the address, serve.

    Raises:
        UserError: If the run folder or the model can't be read.
    """
    settings = ServeSettings.load(run)
    path = model_path(settings)  # before the slow imports: a wrong path is told at once

    import torch
    import transformers

    from clawrl_trl.engines.embedded.app import create_app
    from clawrl_trl.engines.embedded.engine import Engine

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    transformers.utils.logging.disable_progress_bar()
    sys.setswitchinterval(SWITCH_INTERVAL)
    key = os.environ.get("CLAWRL_ENGINE_KEY") or secrets.token_urlsafe(32)
    engine = Engine.load(settings, path)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    config = uvicorn.Config(create_app(engine, key), log_level="warning", timeout_graceful_shutdown=5)
    server = _Server(config, lambda: RunFolder(run).announce("engine", f"http://127.0.0.1:{port}", key=key))
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()


if __name__ == "__main__":
    sys.exit(main())
