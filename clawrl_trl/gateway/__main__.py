"""`python -m clawrl_trl.gateway --run DIR`: the gateway of a run, as a process.

It writes `gateway.json` into the run folder when it is listening, and ends with 0 on SIGTERM or SIGINT after the
requests in flight are answered (for a bounded time) and everything captured is written.
"""

import argparse
import logging
import os
import signal
import socket
import sys

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.errors import run_main
from clawrl_trl.gateway.app import make_app
from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.http.server import BoundedConfig, BoundedServer, listen
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import PRIVATE_UMASK, RunFolder

GRACE_S = 8
"""How long requests in flight may go on after the signal to end, seconds."""

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed while a request is on its way."""

SWITCH_INTERVAL_S = 0.0005
"""How long the thread that writes to the ledger may keep the event loop from going on; Python's default is 5 ms."""


def main() -> int:
    """Serve until told to end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.gateway")
    parser.add_argument("--run", required=True, help="Run folder, with its settings.json.")
    folder = RunFolder(parser.parse_args().run)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # httpx logs a line for every request to the engine; the access log has one for each already.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = ServeSettings.load(folder.path)
    # Before the ledger is opened: files of chats are created readable to their owner alone.
    os.umask(PRIVATE_UMASK)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keys = Keys.from_environment()
    # Before a socket listens: without a key nobody beyond this machine gets a connection at all.
    keys.check_bind(settings.host)
    # Bound here and not by uvicorn, because port 0 takes a free one and `gateway.json` must name it.
    listener = listen(settings.host, settings.port)
    ledger = Ledger.open(settings.ledger_url or folder.ledger)
    gateway = Gateway(folder, settings, keys, ledger, EngineClient.of_run(folder, settings))
    config = BoundedConfig(
        make_app(gateway),
        requests=settings.max_running + settings.max_waiting,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again when it is done; by then there is nothing left to do.
        signal.signal(number, lambda *_: None)
    url = base_url(settings.host, listener)
    server = BoundedServer(config, lambda: folder.announce("gateway", base_url=url))
    server.run(sockets=[listener])
    return 0 if server.started else 1


def base_url(host: str, listener: socket.socket) -> str:
    """The URL to paste into an OpenAI client on this machine."""
    # The addresses that mean "every interface" can be bound, but not connected to everywhere.
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{listener.getsockname()[1]}/v1"


if __name__ == "__main__":
    sys.exit(run_main(main))
