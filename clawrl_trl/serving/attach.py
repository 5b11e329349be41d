"""A trainer's way to a served run: attach to it, or start serving it.

Serving outlives a trainer that attached to it, and ends with one that started it. Either way the trainer
talks to the run through its ledger and its HTTP alone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from filelock import FileLock, Timeout

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.vllm.server import adapter_rank
from clawrl_trl.errors import EXIT_USER_ERROR, UserError
from clawrl_trl.ledger.database_url import share_password, strip_password
from clawrl_trl.process import StopRequest, end_with_parent
from clawrl_trl.run import PRIVATE_FILE, RunFolder, open_private
from clawrl_trl.serving.serve import refuse_other_model
from clawrl_trl.serving.supervisor import read_last_lines

START_TIMEOUT = 2000.0
"""Longer than `clawrl serve` itself waits for its parts, so that it is the one to say what is wrong."""
STOP_TIMEOUT = 90.0
STOPPING = (
    b"\nStopping: waiting for the step under way and for the adapter to be written; Ctrl-C again ends at once.\n"
)


@contextmanager
def attach_or_serve(
    settings: ServeSettings, progress: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, Any]]:
    """Find the gateway of a run, or serve the run for as long as the block lasts.

    Args:
        settings (`ServeSettings`): The run, and how to serve it if nobody does.
        progress (`Callable`, *optional*): Told in a line what is waited for, again and again.

    Yields:
        `dict`: What the gateway announced: `base_url` and `pid`.

    Raises:
        UserError: If serving does not start, serves another model, or has no room for the trainer's adapters.
    """
    folder = RunFolder(settings.run)
    share_password(settings.ledger_url)  # by the environment: command lines are open to other users
    gateway = folder.read_announced("gateway")
    if gateway is not None:
        refuse_other_model(settings)
        _check_adapter_room(settings, ServeSettings.load(folder.path))
        yield gateway
        return
    process = _start(folder, settings)
    try:
        yield _wait_for_gateway(folder, process, progress)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(folder: RunFolder, settings: ServeSettings) -> subprocess.Popen[bytes]:
    try:
        folder.make()
        open_private(folder.logs / "serve.log", "wb").close()
        log = open_private(folder.logs / "serve.log", "ab")  # like all logs: the supervisor cuts those that are long
    except OSError as error:
        raise UserError(f"{folder.path} can't be written to ({error.strerror}): choose another folder.") from None
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "clawrl_trl.cli.main", "serve", *_make_flags(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,  # a Ctrl-C in the terminal is for the trainer, which stops serving last
            preexec_fn=end_with_parent,
        )


def _make_flags(settings: ServeSettings) -> list[str]:
    # One word each: a value that begins with a dash would be taken for a flag.
    values = asdict(settings) | {"ledger_url": strip_password(settings.ledger_url)}
    return [f"--{each.name}={values[each.name]}" for each in fields(settings) if values[each.name] is not None]


def _check_adapter_room(own: ServeSettings, running: ServeSettings) -> None:
    rank, room = own.vllm_max_lora_rank or 0, adapter_rank(running)
    if running.engine == "vllm" and rank > room:
        raise UserError(
            f"{running.run} is served with room for adapters of rank {room}, the trainer's have {rank}: serve it "
            f"again with --vllm_max_lora_rank {rank}."
        )


def _wait_for_gateway(
    folder: RunFolder, process: subprocess.Popen[bytes], progress: Callable[[str], None]
) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        progress(_describe_start(folder))
        gateway = folder.read_announced("gateway")
        if gateway is not None and (folder.read_announced("judge") or not _has_judge(folder)):
            return gateway
        code = process.poll()
        if code is not None:
            line = read_last_lines(folder.logs / "serve.log").removeprefix("error: ")
            if code == EXIT_USER_ERROR and line:
                raise UserError(line)
            raise UserError(f"Serving ended with code {code}; see {folder.logs / 'serve.log'}.")
        time.sleep(0.05)
    raise UserError(f"Serving was not ready after {START_TIMEOUT:.0f} s; see the logs in {folder.logs}.")


def _describe_start(folder: RunFolder) -> str:
    if folder.read_announced("engine") is not None:
        return "Starting gateway and judge"
    line = read_last_lines(folder.logs / "engine.log")
    return f"Starting the engine: {line}" if line else "Starting the engine"


def _has_judge(folder: RunFolder) -> bool:
    return ServeSettings.load(folder.path).judge != "off"


@contextmanager
def claim_training(folder: RunFolder) -> Iterator[None]:
    """Be the one trainer of a run while the block lasts.

    Raises:
        UserError: If another process trains on the run.
    """
    lock = FileLock(folder.make().path / "train.lock", mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{folder.path} is being trained already: stop that first, or use another folder.") from None
    with lock:
        folder.announce("trainer", "")
        try:
            yield
        finally:
            (folder.path / "trainer.json").unlink(missing_ok=True)
            folder.tighten()  # what transformers has written


def stop_on_signals() -> StopRequest:
    """Return a request that SIGINT and SIGTERM make; a second SIGINT ends the process at once."""
    stop = StopRequest()

    def request_stop(number: int, _: object) -> None:
        if os.environ.get("RANK", "0") == "0":  # a terminal's Ctrl-C reaches every process of a trainer
            os.write(2, STOPPING)  # a signal handler may have interrupted a print
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    return stop


@contextmanager
def take_foreground() -> Iterator[None]:
    """Be the terminal's take_foreground process group, so that Ctrl-C reaches this process and not its launcher.

    `accelerate launch` dies of a Ctrl-C while its script is still shutting down, and reports failure. Without
    a terminal, or when this process leads its group already, nothing is changed.
    """
    if not sys.stdin.isatty() or os.getpgrp() == os.getpid() or os.tcgetpgrp(0) != os.getpgrp():
        yield
        return
    group_before = os.getpgrp()
    # The kernel stops a background process by SIGTTOU when it takes the terminal.
    handler_before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(0, group_before)
        signal.signal(signal.SIGTTOU, handler_before)
