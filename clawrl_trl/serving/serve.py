"""Serving one run: engine, gateway and judge, under a supervisor.

A run folder is served by one process at a time, which holds its lock. Training is not needed for serving and
not part of it: a trainer finds a served folder through its readiness files, or starts this module as a child.
"""

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from clawrl_trl.config.api_keys import read_api_key
from clawrl_trl.config.serving import LOOPBACK_HOSTS, ServeSettings
from clawrl_trl.engines.launch import JUDGE_KEY, engine_command, free_port
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.database_url import share_password
from clawrl_trl.run import PRIVATE_FILE, RunFolder
from clawrl_trl.serving.connection import describe_connection
from clawrl_trl.serving.supervisor import GRACE, Child, Supervisor, read_last_lines

logger = logging.getLogger(__name__)

ENGINE_START_TIMEOUT = 1800.0
"""Longest wait for an engine: it may have a large model to fetch."""
START_TIMEOUT = 120.0
PROBE_TIMEOUT = 20.0
"""Longest wait for a part to say that it is well; a busy machine is slow, not stuck."""
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
    share_password(settings.ledger_url)
    folder = make_folder(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    console = Console(stderr=True, quiet=quiet)
    with _acquire_lock(folder):
        # A ledger that can't be opened is told here, and not by a gateway that is started again and again.
        Ledger.open(settings.ledger_url or folder.ledger).close()
        supervisor = Supervisor(folder.logs)
        try:
            settings = start_all(supervisor, folder, settings, console, stop)
            if not stop.is_set():
                announced = folder.read_announced("gateway") or {}
                console.print(
                    describe_connection(settings, announced["base_url"]), highlight=False, markup=False, soft_wrap=True
                )
                supervisor.watch(stop)
            console.print(
                f"Stopping: waiting for replies under way to be written down, {GRACE:.0f} s at most for each process."
            )
        finally:
            supervisor.stop()
            for name in PARTS:
                (folder.path / f"{name}.json").unlink(missing_ok=True)
    console.print("Stopped; everything captured is in the ledger.")
    return 0


@contextmanager
def engine_only(folder: RunFolder, settings: ServeSettings) -> Iterator[None]:
    """Have the engine of a run while the block lasts: the one that serves it, or one started for the moment."""
    if folder.read_announced("engine") is not None:
        yield
        return
    with _acquire_lock(folder):
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
    settings.save()  # before any part starts: each reads them there
    run = ["--run", str(folder.path)]
    _start_engine(supervisor, folder, settings, console, stop)
    settings = _start_judge_engine(supervisor, folder, settings, console, stop)
    probe = _make_probe(folder, "gateway", "/healthz")
    command = [sys.executable, "-m", "clawrl_trl.gateway", *run]
    gateway = Child("gateway", command, probe=probe, hang_timeout=settings.hang_timeout)
    _start(supervisor, folder, gateway, START_TIMEOUT, console, stop)
    announced = folder.read_announced("gateway")
    if settings.port == 0 and announced is not None:
        # A gateway that is started again takes the same port: clients have its address.
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
    # Engine, gateway and judge inherit it: a command line is open to other users.
    os.environ.setdefault("CLAWRL_ENGINE_KEY", secrets.token_urlsafe(24))
    probe = _make_probe(folder, "engine", "/health")
    engine = Child("engine", engine_command(settings), probe=probe, hang_timeout=settings.hang_timeout)
    _start(supervisor, folder, engine, ENGINE_START_TIMEOUT, console, stop)


def _make_probe(folder: RunFolder, name: str, path: str) -> Callable[[], bool]:
    """Return a probe of a part's own address: true if it answers, and not with a fault."""

    def answers() -> bool:
        announced = folder.read_announced(name)
        if announced is None:
            return False
        url = announced["base_url"].removesuffix("/v1") + path
        try:
            return httpx.get(url, timeout=PROBE_TIMEOUT, trust_env=False).status_code < 500
        except httpx.HTTPError:
            return False

    return answers


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
    size_before = log.stat().st_size if log.exists() else 0
    supervisor.start(child)
    with console.status(f"Starting the {child.name} (log: {log})") as status:

        def is_ready() -> bool:
            last_line = f": {read_last_lines(log)}" if log.stat().st_size > size_before else ""
            status.update(escape(f"Starting the {child.name}{last_line} (log: {log})"))
            return stop.is_set() or folder.read_announced(child.name) is not None

        supervisor.wait_until(is_ready, child, timeout)


def check_bind(settings: ServeSettings) -> None:
    """Refuse to open a gateway without a key to anybody but this machine.

    Raises:
        UserError: If the host is not a loopback address and no chat key is set.
    """
    if settings.host not in LOOPBACK_HOSTS and not read_api_key("chat"):
        raise UserError(
            f"--host {settings.host} would let anybody on the network in: set a key first, for example "
            "export CLAWRL_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')."
        )


def make_folder(settings: ServeSettings) -> RunFolder:
    """Make the run folder ready to be written to.

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


def _acquire_lock(folder: RunFolder) -> FileLock:
    lock = FileLock(folder.path / "serve.lock", mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        gateway = folder.read_announced("gateway")
        where = f" at {gateway['base_url']}" if gateway else ""
        raise UserError(
            f"{folder.path} is being served already{where}: stop that first, or use another --run."
        ) from None
    return lock
