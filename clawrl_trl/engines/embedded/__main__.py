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
import time

import psutil

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.launch import model_path
from clawrl_trl.errors import run_main
from clawrl_trl.http.server import BoundedConfig, BoundedServer
from clawrl_trl.model_classes import import_model_classes
from clawrl_trl.run import RunFolder

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported

SWITCH_INTERVAL = 0.0005
"""Seconds a busy event loop may keep the decoding thread from going on; Python's default is 0.005."""

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.engines.embedded", description="The embedded engine.")
    parser.add_argument("--run", required=True, help="run folder with a settings.json")
    run = parser.parse_args(arguments).run
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return run_main(lambda: asyncio.run(serve(run)))


async def serve(run: str) -> None:
    """Load the model, announce the address, serve.

    Raises:
        UserError: If the run folder or the model can't be read, or the model can't continue a prompt.
    """
    settings = ServeSettings.load(run)
    path = model_path(settings)  # before the slow imports: a wrong path is told at once

    import_model_classes()
    import torch
    import transformers

    from clawrl_trl.engines.embedded.app import create_app
    from clawrl_trl.engines.embedded.engine import Engine

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    transformers.utils.logging.disable_progress_bar()
    sys.setswitchinterval(SWITCH_INTERVAL)
    key = os.environ.get("CLAWRL_ENGINE_KEY") or secrets.token_urlsafe(32)
    imported_at = time.time()
    engine = Engine.load(settings, path)
    loaded_at = time.time()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    app = create_app(engine, key)
    requests = settings.max_running + settings.max_waiting
    config = BoundedConfig(app, requests=requests, log_level="warning", timeout_graceful_shutdown=5)

    def announce() -> None:
        RunFolder(run).announce("engine", f"http://127.0.0.1:{port}", key=key)
        begun_at = psutil.Process().create_time()
        stages = (imported_at - begun_at, loaded_at - imported_at, time.time() - loaded_at)
        logger.info("ready: start and imports %.2f s, model %.2f s, warm-up %.2f s", *stages)

    server = BoundedServer(config, announce)
    try:
        await server.serve(sockets=[listener])
    finally:
        if app.state.refusal is not None:
            raise app.state.refusal  # in place of uvicorn's own exit


if __name__ == "__main__":
    sys.exit(main())
