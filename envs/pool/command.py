"""`clawrl env-server`: lend environments of a task set over HTTP until interrupted."""

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from clawrl_trl.envs.catalogue import find_task_folder, get_environment, list_environments
from clawrl_trl.errors import UserError
from clawrl_trl.gateway.auth import Keys, is_loopback
from clawrl_trl.http.server import listen

KEY = "CLAWRL_ENV_KEY"
GRACE_S = 10


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted; returns the exit code."""
    arguments = _make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    keys = Keys(chat=tuple(key for key in os.environ.get(KEY, "").split(",") if key.strip()))
    if not keys.chat and not is_loopback(arguments.host):
        raise UserError(f"--host {arguments.host} would lend a sandbox to anybody: set a key first, in {KEY}.")
    source = find_task_folder(arguments.tasks, arguments.env, Path("examples/tasks"))
    # torchrl takes seconds to load: a mistake is told before.
    from clawrl_trl.envs.pool.pool import EnvPool
    from clawrl_trl.envs.pool.server import make_app

    make_env, count = get_environment(arguments.env).make_factory(
        source, arguments.split, difficulty=arguments.difficulty, max_steps=arguments.max_steps
    )
    pool = EnvPool(make_env, arguments.size, idle_s=arguments.idle_s, call_s=arguments.call_s)
    listener = listen(arguments.host, arguments.port)
    config = uvicorn.Config(
        make_app(pool, keys, arguments.host), log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S
    )
    address = f"http://{arguments.host}:{listener.getsockname()[1]}"
    print(f"{arguments.size} {arguments.env} environments over {count} tasks at {address}; Ctrl-C stops.", flush=True)
    server = uvicorn.Server(config)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("clawrl env-server", description="Lend environments over HTTP.")
    add = parser.add_argument
    add("--env", required=True, choices=list_environments(), help="environment")
    add("--tasks", help="task set: a path, or a name in examples/tasks; default: the environment's name")
    add("--split", default="train", help="split of the task set (default: %(default)s)")
    add("--difficulty", type=int, help="only tasks of this difficulty")
    add("--max_steps", type=int, help="most actions of an episode")
    add("--size", type=int, default=8, help="environments at most (default: %(default)s)")
    add("--idle_s", type=float, default=120.0, help="seconds a lease lasts without a call (default: %(default)s)")
    add("--call_s", type=float, default=300.0, help="longest a call may take, seconds (default: %(default)s)")
    add("--host", default="127.0.0.1", help=f"address to bind; anything but loopback needs {KEY}")
    add("--port", type=int, default=18080, help="port; 0 picks a free one (default: %(default)s)")
    return parser
