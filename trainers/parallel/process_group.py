"""Waiting for other processes of a training, and leaving their group.

What takes the main process minutes (an engine's start, an evaluation) is waited for on a group of its
own, on gloo: it has no time-out that a slow start would exceed, and a process that waits in it sleeps. NCCL's waiting
processes would keep their cores and, beside an engine, their share of the GPU busy.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from torch import distributed

from clawrl_trl.errors import UserError

Value = TypeVar("Value")

TIMEOUT = timedelta(days=30)
"""Longest wait for another process. One that dies ends the wait at once, for its connections close."""


@cache
def _get_group() -> distributed.ProcessGroup:
    # The first use makes it, on every process: all of them reach it together, as with any use.
    group: distributed.ProcessGroup = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    return group


def share(value: Value) -> Value:
    """Return the main process's value on every process.

    Raises:
        UserError: If another process has ended.
    """
    if PartialState().num_processes == 1:
        return value
    message: list[object] = [value]
    with explain_ended_process():
        distributed.broadcast_object_list(message, src=0, group=_get_group())
    return cast(Value, message[0])


def broadcast_tensor(tensor: torch.Tensor) -> None:
    """Give a tensor of every process the main process's values; in place.

    Before training the weights may still be on the CPU, where NCCL takes none.

    Raises:
        UserError: If another process has ended.
    """
    if PartialState().num_processes == 1:
        return
    with explain_ended_process():
        distributed.broadcast(tensor, src=0, group=_get_group() if tensor.device.type == "cpu" else None)


def wait_for_all() -> None:
    """Wait until every process is here.

    Raises:
        UserError: If another process has ended.
    """
    if PartialState().num_processes == 1:
        return
    with explain_ended_process():
        distributed.barrier(group=_get_group())


def run_on_main(function: Callable[[], Value]) -> Value:
    """Call a function on the main process alone, and return its value on every process.

    Raises:
        UserError: If the function fails, on the other processes too; the main process has the function's own error.
    """
    if not PartialState().is_main_process:
        value, failure = share(cast("tuple[Value, str | None]", None))
        if failure is not None:
            raise UserError(f"The main process stopped: {failure}")
        return value
    try:
        value = function()
    except Exception as error:
        # Else the others would wait for a value that never comes.
        share((None, str(error) if isinstance(error, UserError) else type(error).__name__))
        raise
    return share((value, None))[0]


@contextmanager
def explain_ended_process() -> Iterator[None]:
    """Turn the errors of communication inside the block into one line.

    Raises:
        UserError: If another process has ended.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo's errors are plain RuntimeErrors that name its sources.
        if not isinstance(error, distributed.DistError) and "gloo/transport" not in str(error):
            raise
        raise UserError(
            "Another process of this training has ended; its own message says why. Start the command again."
        ) from error


def leave_process_group() -> None:
    """Collect the trainers that nobody refers to any more, then destroy the process groups, if there are any.

    A trainer that lives in reference cycles keeps a group's threads alive until the interpreter shuts down, and one of
    them that then lets go of a tensor aborts the process ("terminate called without an active exception").
    """
    gc.collect()
    _get_group.cache_clear()
    PartialState().destroy_process_group()
