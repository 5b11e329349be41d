"""Serving one run: engine, gateway and judge, under a supervisor.

A run folder is served by one process at a time, which holds its lock. Training is not needed for serving and
not part of it: a trainer finds a served folder through its readiness files, or starts this module as a child.
"""

import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from clawrl_trl.engines.launch import JUDGE_KEY, engine_command, free_port
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import LOOPBACK_HOSTS, ServeSettings, api_key
from clawrl_trl.supervisor import Child, Supervisor, last_lines

logger = logging.getLogger(__name__)

ENGINE_START_TIMEOUT = 1800.0
"""Longest wait for an engine: it may have a large model to fetch."""
START_TIMEOUT = 120.0
PARTS = ("gateway", "judge", "engine", "judge_engine")
JUDGE_NICE = 5
"""Added to the judge's priority number: the chat comes first."""


def serve(settings: ServeSettings, *, quiet: bool = False) -> int:
    """Serve a run until SIGINT or SIGTERM.

    Args:
        settings (`ServeSettings`): What to serve and where.
        quiet (`bool`, *optional*, defaults to `False`): Print nothing but errors.

    Returns:
        `int`: 0 after a clean stop.

    Raises:
        UserError: If the run is being served already, a part does not start, or a setting is unusable.
    """
    check_bind(settings)
    folder = make_folder(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    console = Console(stderr=True, quiet=quiet)
    with _lock(folder):
        Ledger.open(settings.ledger_url or folder.ledger).close()
        supervisor = Supervisor(folder.logs)
        try:
            settings = start_all(supervisor, folder, settings, console, stop)
            if not stop.is_set():
                announced = folder.announced("gateway") or {}
                console.print(connection_help(settings, announced["base_url"]), highlight=False)
                supervisor.watch(stop)
        finally:
            supervisor.stop()
            for name in PARTS:
                (folder.path / f"{name}.json").unlink(missing_ok=True)
    console.print("Stopped; everything captured is in the ledger.")
    return 0


@contextmanager
def engine_only(folder: RunFolder, settings: ServeSettings) -> Iterator[None]:
    """The engine of a run while the block lasts: the one that serves it, or one started for the moment."""
    if folder.announced("engine") is not None:
        yield
        return
    with _lock(folder):
        supervisor = Supervisor(folder.logs)
        settings.save()
        try:
            _start_engine(supervisor, folder, settings, Console(stderr=True), threading.Event())
            yield
        finally:
            supervisor.stop()
            (folder.path / "engine.json").unlink(missing_ok=True)


def start_all(
    supervisor: Supervisor,
    folder: RunFolder,
    settings: ServeSettings,
    console: Console,
    stop: threading.Event,
) -> ServeSettings:
    """Start engine, gateway and judge, each when the one before is ready; returns the resolved settings."""
    for name in PARTS:
        (folder.path / f"{name}.json").unlink(missing_ok=True)
    settings.save()
    run = ["--run", str(folder.path)]
    _start_engine(supervisor, folder, settings, console, stop)
    settings = _start_judge_engine(supervisor, folder, settings, console, stop)
    gateway = Child("gateway", [sys.executable, "-m", "clawrl_trl.gateway", *run])
    _start(supervisor, folder, gateway, START_TIMEOUT, console, stop)
    announced = folder.announced("gateway")
    if settings.port == 0 and announced is not None:
        settings = replace(settings, port=int(announced["base_url"].split(":")[-1].split("/")[0]))
        settings.save()
    if settings.judge != "off":
        judge = Child("judge", [sys.executable, "-m", "clawrl_trl.judge", *run], nice=JUDGE_NICE)
        _start(supervisor, folder, judge, START_TIMEOUT, console, stop)
    return settings


def _start_engine(
    supervisor: Supervisor,
    folder: RunFolder,
    settings: ServeSettings,
    console: Console,
    stop: threading.Event,
) -> None:
    if settings.engine.startswith(("http://", "https://")):
        folder.announce("engine", settings.engine.rstrip("/"), key=os.environ.get("CLAWRL_ENGINE_KEY"))
        return
    os.environ.setdefault("CLAWRL_ENGINE_KEY", secrets.token_urlsafe(24))
    engine = Child("engine", engine_command(settings))
    _start(supervisor, folder, engine, ENGINE_START_TIMEOUT, console, stop)


def _start_judge_engine(
    supervisor: Supervisor,
    folder: RunFolder,
    settings: ServeSettings,
    console: Console,
    stop: threading.Event,
) -> ServeSettings:
    """Start the llm judge's own server where it has devices of its own; the settings then name it."""
    if not settings.prm_gpus or settings.judge != "llm" or settings.judge_url:
        return settings
    settings = replace(settings, judge_url=f"http://127.0.0.1:{free_port()}")
    settings.save()
    os.environ.setdefault(JUDGE_KEY, secrets.token_urlsafe(24))
    engine = Child("judge_engine", engine_command(settings, judge=True))
    _start(supervisor, folder, engine, ENGINE_START_TIMEOUT, console, stop)
    return settings


def _start(
    supervisor: Supervisor,
    folder: RunFolder,
    child: Child,
    timeout: float,
    console: Console,
    stop: threading.Event,
) -> None:
    if stop.is_set():
        return
    log = supervisor.logs / f"{child.name}.log"
    before = log.stat().st_size if log.exists() else 0
    supervisor.start(child)
    with console.status(f"Starting the {child.name} (log: {log})") as status:

        def ready() -> bool:
            doing = f": {last_lines(log)}" if log.stat().st_size > before else ""
            status.update(escape(f"Starting the {child.name}{doing} (log: {log})"))
            return stop.is_set() or folder.announced(child.name) is not None

        supervisor.wait_until(ready, child, timeout)


def check_bind(settings: ServeSettings) -> None:
    """Refuse to open a gateway without a key to anybody but this machine.

    Raises:
        UserError: If the host is not a loopback address and no chat key is set.
    """
    if settings.host not in LOOPBACK_HOSTS and not api_key("chat"):
        raise UserError(
            f"--host {settings.host} would let anybody on the network in: set a key first, for example "
            "export CLAWRL_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')."
        )


def make_folder(settings: ServeSettings) -> RunFolder:
    """The run folder, made ready to be written to.

    Raises:
        UserError: If it can't be made or written to.
    """
    folder = RunFolder(Path(settings.run))
    try:
        folder.make()
        probe = folder.path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"Run folder {folder.path} can't be written to ({error.strerror}): choose another.") from None
    return folder


def _lock(folder: RunFolder) -> FileLock:
    lock = FileLock(folder.path / "serve.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        there = folder.announced("gateway")
        where = f" at {there['base_url']}" if there else ""
        raise UserError(
            f"{folder.path} is being served already{where}: stop that first, or use another --run."
        ) from None
    return lock


def connection_help(settings: ServeSettings, base_url: str) -> str:
    """What a person pastes into an OpenAI client and into `openclaw.json`."""
    key = "$CLAWRL_API_KEY" if api_key("chat") else "none-needed"
    provider = {
        "models": {
            "providers": {
                "clawrl": {
                    "baseUrl": base_url,
                    "apiKey": key,
                    "api": "openai-completions",
                    "models": [
                        {
                            "id": settings.served_model_name,
                            "name": settings.served_model_name,
                            "reasoning": False,
                            "input": ["text"],
                            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                            "contextWindow": settings.max_model_len,
                            "maxTokens": min(8192, settings.max_model_len // 2),
                        }
                    ],
                }
            }
        }
    }
    return (
        f"Serving {settings.model_name_or_path or 'the bundled model'} at {base_url}\n\n"
        f"Any OpenAI client:\n"
        f'    client = OpenAI(base_url="{base_url}", api_key="{key}")\n'
        f'    client.chat.completions.create(model="{settings.served_model_name}", messages=[...])\n\n'
        f"OpenClaw, in openclaw.json:\n{json.dumps(provider, indent=2)}\n"
    )
