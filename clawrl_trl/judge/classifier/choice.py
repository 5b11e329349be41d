"""The encoder that a run's embedded judge reads with: the one that is named, or with `auto` the best that suits.

With the bundled model that is the small one, which is installed; with a model of the Hub the best that this machine
has room and a processor for, which is fetched; with a model in a folder the best of these that is here. One that was
named and can't be had ends the start; one that was chosen leaves the next smaller one to read, and the log says so.
"""

import logging
from pathlib import Path

import psutil

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.config.serving_arguments import BEST_ENCODER
from clawrl_trl.engines.precision import has_bfloat16_products
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, MPNET, QWEN, list_up_to

logger = logging.getLogger(__name__)

LEAST_MEMORY = 20 * 2**30
"""Bytes of memory of a machine with room for the language model (5 GiB, 8 in float32) beside all else that it does."""
MANY_CORES = 8
"""Cores of a machine that can spare one for the 4 s that a message takes without products in bfloat16."""
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""What a container may use, in bytes, or the word `max`."""
CORE_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Time that a container may compute for, or the word `max`, and in which time, both in microseconds."""


def choose_encoder(settings: ServeSettings) -> str:
    """The encoder that is named, or the best that suits the run and this machine. Nothing is fetched."""
    if settings.judge_encoder != BEST_ENCODER:
        return settings.judge_encoder
    if settings.judge != "auto" or settings.model_name_or_path is None:
        return MINILM
    is_fast = has_bfloat16_products() or count_cores() >= MANY_CORES
    best = QWEN if is_fast and measure_memory() >= LEAST_MEMORY else MPNET
    if not Path(settings.model_name_or_path).is_dir():
        return best
    is_here = [name for name in list_up_to(best) if all(ENCODERS[smaller].look() for smaller in list_up_to(name))]
    return is_here[0] if is_here else MINILM


def obtain_encoder(settings: ServeSettings) -> str:
    """Get what the run's judge reads with onto this machine, and return its name.

    Raises:
        UserError: If the encoder that was named, or the small one, can't be had.
    """
    best = MINILM
    for name in reversed(list_up_to(choose_encoder(settings))):
        try:
            ENCODERS[name].find()
        except UserError as failure:
            if settings.judge_encoder != BEST_ENCODER or name == MINILM:
                raise
            logger.warning("the embedded judge reads with %s: %s", best, failure)
            break
        best = name
    return best


def measure_memory() -> int:
    """Bytes of memory that this machine has, or this container may use."""
    total = int(psutil.virtual_memory().total)
    limit, *_ = _read_limit(MEMORY_LIMIT)
    return min(total, int(limit)) if limit.isdigit() else total


def count_cores() -> float:
    """Cores that this machine has, or as many as this container may use the time of."""
    total = psutil.cpu_count() or 1
    limit, *period = _read_limit(CORE_LIMIT)
    return min(total, int(limit) / int(period[0])) if limit.isdigit() else total


def _read_limit(path: Path) -> list[str]:
    try:
        return path.read_text().split() or ["max"]
    except OSError:
        return ["max"]
