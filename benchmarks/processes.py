"""Processes that the benchmarks start: a served run, a whole training run, and the wait for either.

No benchmark of its own: the others import it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reporting import ROOT, Row

from clawrl_trl.run import RunFolder

CONTROLS = ROOT / "benchmarks" / "controls.py"


def wait_for(condition: Callable[[], object], timeout: float = 180.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: If it does not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("not ready in time")
        time.sleep(0.1)


@contextmanager
def serve(folder: RunFolder, *flags: str, timeout: float = 300.0) -> Iterator[str]:
    """Run `clawrl serve` on a folder for as long as the block lasts; yields the gateway's URL.

    Raises:
        RuntimeError: If it ends before it serves; with the end of its log.
    """
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "serve", "--run", str(folder.path), "--port", "0", *flags]
    with (folder.logs / "serve.log").open("ab") as log:
        # In a group of its own: Ctrl-C must end the benchmark first, which then ends it in order.
        process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
    try:
        wait_for(lambda: folder.read_announced("gateway") or process.poll() is not None, timeout)
        announced = folder.read_announced("gateway")
        if announced is None:
            raise RuntimeError((folder.logs / "serve.log").read_text()[-2000:])
        yield announced["base_url"]
    finally:
        process.terminate()
        process.wait(60)


def run_training(folder: Path, *flags: str, timeout: float) -> Row:
    """Run `examples/train.py` in a folder, or read its metrics if they are there from an earlier try.

    Raises:
        RuntimeError: If it fails; with the end of what it printed.
    """
    metrics = folder / "metrics.json"
    if not metrics.exists():
        command = [
            *(sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "examples" / "train.py")),
            *("--port", "0", "--output_dir", str(folder), *flags),
        ]
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}")
    row: Row = json.loads(metrics.read_text())
    return row
