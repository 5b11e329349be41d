"""Start of a process that plays on a run: it is given the run folder alone, and finds the rest there."""

import argparse
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.base.actor import POLL_SECONDS
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder


def start_worker(argv: Sequence[str] | None, module: str, description: str) -> Path:
    """Prepare the process; returns the run folder that the command line names."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Ended as by Ctrl-C, so that what is open is closed and no traceback is left in the log.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(f"python -m {module}", description=description)
    parser.add_argument(
        "--run", type=Path, required=True, help="run folder with the options; what is played goes there"
    )
    run: Path = parser.parse_args(argv).run
    return run


def find_gateway(run: str | Path, patience: float) -> Callable[[], str | None]:
    """Find the run's gateway; asked anew when it went away, since it may come back on another port.

    Raises:
        UserError: If there is none after `patience` seconds.
    """

    def locate() -> str | None:
        announced = RunFolder(run).read_announced("gateway")
        return str(announced["base_url"]) if announced else None

    deadline = time.monotonic() + patience
    while locate() is None:
        if time.monotonic() > deadline:
            raise UserError(f"{run} is not being served: start it with 'clawrl serve --run {run}'.")
        time.sleep(POLL_SECONDS)
    return locate


def read_served_model(run: str | Path) -> str:
    """Return the model name under which clients reach the run's newest policy."""
    settings = ServeSettings.find(run)
    return "clawrl" if settings is None else settings.model_names[0]
