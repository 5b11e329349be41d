"""Assignment of accelerators to the trainer, the engine and a judge's own engine.

By default all share one: that is what "colocated" means here. Who has more gives counts (`ACTOR_GPUS`, `ROLLOUT_GPUS`,
`PRM_GPUS`, as in the reference system), and the visible devices are assigned in that order. Every process is
told its share through `CUDA_VISIBLE_DEVICES` before it starts, so none can touch another's memory by mistake.
"""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from clawrl_trl.config.serving_arguments import ServingArguments
from clawrl_trl.errors import UserError

ALLOCATOR, SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""How the trainer's allocator keeps memory: in segments that grow and are given back whole. In blocks of fixed sizes,
the default, a few tensors keep gigabytes from an engine that has to start again beside it."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL = "CLAWRL_VISIBLE_DEVICES"
"""Where the whole list is kept once a process has narrowed its own view, for the processes it starts."""


@dataclass(frozen=True)
class Devices:
    """Values of `CUDA_VISIBLE_DEVICES`; `None` leaves a process what its parent has."""

    trainer: str | None = None
    engine: str | None = None
    judge: str | None = None


def assign_devices(settings: ServingArguments, environment: Mapping[str, str] = os.environ) -> Devices:
    """Assign the visible devices to trainer, engine and judge, in that order.

    Args:
        settings (`ServingArguments`): The counts; 0 for the engine or the judge means that it has none of its own.
        environment (`Mapping[str, str]`, defaults to this process's): Names the visible devices.

    Raises:
        UserError: If the counts don't fit together or ask for more than is visible.
    """
    counts = (settings.actor_gpus, settings.rollout_gpus, settings.prm_gpus)
    if not settings.rollout_gpus and not settings.prm_gpus:
        return Devices()
    if not settings.actor_gpus:
        raise UserError("ROLLOUT_GPUS and PRM_GPUS need ACTOR_GPUS, the number of devices that train: set it too.")
    # The whole list first: this process's own view may have been narrowed to the trainer's share.
    visible = environment.get(ALL) or environment.get(VISIBLE)
    # Without a list CUDA numbers the devices from 0; asking it would initialise CUDA here, which is too early.
    names = visible.split(",") if visible else [str(number) for number in range(sum(counts))]
    if sum(counts) > len(names):
        raise UserError(
            f"ACTOR_GPUS + ROLLOUT_GPUS + PRM_GPUS ask for {sum(counts)} devices, {len(names)} are visible: "
            f"lower them or widen {VISIBLE}."
        )
    actor, rollout, prm = counts
    trainer = ",".join(names[:actor])
    engine = ",".join(names[actor : actor + rollout]) if rollout else trainer
    judge = ",".join(names[actor + rollout : sum(counts)]) if prm else None
    return Devices(trainer, engine, judge)


def narrow_trainer(settings: ServingArguments, environment: MutableMapping[str, str] = os.environ) -> None:
    """Leave this process, which trains, the trainer's devices alone; call it before CUDA is used.

    Raises:
        UserError: If there are more or fewer processes than devices that train; see also `assign_devices`.
    """
    processes = int(environment.get("WORLD_SIZE") or 1)
    if settings.actor_gpus not in (0, processes):
        raise UserError(
            f"ACTOR_GPUS={settings.actor_gpus} needs as many processes, not {processes}: accelerate launch "
            f"--num_processes {settings.actor_gpus}."
        )
    share = assign_devices(settings, environment).trainer
    if share is None:
        return
    if ALL not in environment:  # else a parent has narrowed this view before, and the whole list is there
        everything = environment.get(VISIBLE)
        counts = settings.actor_gpus + settings.rollout_gpus + settings.prm_gpus
        environment[ALL] = everything or ",".join(map(str, range(counts)))
    environment[VISIBLE] = share


def place_weights(environment: Mapping[str, str] = os.environ) -> dict[str, dict[str, int]]:
    """Return the option with which a process that trains alone on one GPU loads its whole model there, else none.

    Without it accelerate puts layers for which the GPU is too small on the CPU, without a word, and training crawls.
    """
    from torch import cuda

    alone = int(environment.get("WORLD_SIZE") or 1) == 1 and cuda.is_available() and cuda.device_count() == 1
    return {"device_map": {"": 0}} if alone else {}


def set_allocator(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, which trains, give back the memory that it does not use; call it before CUDA is used.

    What a user has set stays, under either name that PyTorch reads.
    """
    if "PYTORCH_ALLOC_CONF" not in environment:
        environment.setdefault(ALLOCATOR, SEGMENTS)


def drop_allocator(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what `set_allocator` has set, for an engine that the trainer starts.

    vLLM shares memory between its workers, which segments that grow can't be.
    """
    return {name: value for name, value in environment.items() if (name, value) != (ALLOCATOR, SEGMENTS)}
