"""Serving one run: engine, gateway and judge, under a supervisor.

A run folder is served by one process at a time, which holds its lock. Training is not needed for serving and
not part of it: a trainer finds a served folder through its readiness files, or starts this module as a child.
"""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from filelock import FileLock, Timeout
from rich.console import Console
from sqlalchemy import select

from clawrl_trl.config.api_keys import read_api_key
from clawrl_trl.config.serving import LOOPBACK_HOSTS, ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.database_url import share_password
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.process import StopRequest
from clawrl_trl.run import PRIVATE_FILE, RunFolder
from clawrl_trl.serving.connection import describe_connection
from clawrl_trl.serving.startup import PARTS, Startup
from clawrl_trl.serving.supervisor import GRACE, Supervisor
from clawrl_trl.tiny import MODEL_PATH

logger = logging.getLogger(__name__)


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
    stop = StopRequest()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    console = Console(stderr=True, quiet=quiet)
    with _acquire_lock(folder):
        refuse_other_model(settings, has_turns=_has_turns(settings, folder))
        supervisor = Supervisor(folder.logs)
        try:
            settings = Startup(supervisor, folder, console, stop).start_all(settings)
            if not stop.is_set():
                announced = folder.read_announced("gateway")
                # It may have died while the judge started: then it comes back at the same address.
                if announced is not None:
                    connection = describe_connection(settings, announced["base_url"])
                    console.print(connection, highlight=False, markup=False, soft_wrap=True)
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
            Startup(supervisor, folder, Console(stderr=True), StopRequest()).start_engine(settings)
            yield
        finally:
            supervisor.stop()
            (folder.path / "engine.json").unlink(missing_ok=True)


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


def _has_turns(settings: ServeSettings, folder: RunFolder) -> bool:
    # A ledger that can't be opened is told here, and not by a gateway that is started again and again.
    ledger = Ledger.open(settings.ledger_url or folder.ledger)
    try:
        with ledger.reader() as tx:
            return tx.scalar(select(Turn.seq).limit(1)) is not None
    finally:
        ledger.close()


def refuse_other_model(settings: ServeSettings, *, has_turns: bool = True) -> None:
    """Refuse to go on with a run whose chats and policies another model made: its tokens mean something else.

    A model is known by the last part of its name, so that its folder may be moved.

    Raises:
        UserError: If the run has turns, and its settings name another model.
    """
    before = None
    with suppress(UserError):  # settings that can't be read are written anew
        before = ServeSettings.find(settings.run)
    # An engine that runs elsewhere need not be told which model it has.
    if (
        before is None
        or not has_turns
        or any(each.is_remote and not each.model_name_or_path for each in (before, settings))
    ):
        return
    names = [PurePath(each.model_name_or_path or MODEL_PATH).name for each in (before, settings)]
    if names[0] != names[1]:
        made_by, asked = (each.model_name_or_path or "the bundled model" for each in (before, settings))
        raise UserError(
            f"{settings.run} belongs to {made_by}: neither its chats nor its policies are of use to {asked}. Choose "
            "another folder (--output_dir, or --run of 'clawrl serve')."
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
