"""All that a GPU is to show, in one call of at most ten minutes: `benchmarks/gpu_session.sh` sets up and runs it.

Versions; memory of a pass at three lengths beside the doctor's arithmetic; tokens a second of the trainer, with the
share of the card's peak, and of TRL on the same samples; tokens a second of the engine, time to the first token with
and without training, time of a swap; what the bundled model learns by the README's command. Each part is a process
with a time-out: one that fails or is late costs its own lines, which say so, and none of the others.

Without a GPU the parts run at small shapes on the processor. Writes `gpu_session.json`, which keeps the figures of
both, and `gpu_session.md`, a table in which what was not measured is called so.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import psutil
from reporting import RESULTS, Row, write_results

BENCHMARKS = Path(__file__).parent
COLUMNS = {"cpu": "processor, small shapes", "gpu": "one GPU, Qwen3-4B's shape"}
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "vllm", "torchrl", "clawrl-trl")
LEARNING = ("score_before", "score_after", "correct_before", "correct_after", "failed_requests", "wall_s")
COLOCATED = (
    "engine", "clients", "tokens/s, engine alone", "tokens/s, training beside it",
    "time to first token, alone, median ms", "time to first token, alone, p95 ms",
    "time to first token, training, median ms", "time to first token, training, p95 ms",
    "time of a step, median s", "time of a swap, median s", "time of a swap, largest s",
    "peak memory, engine GiB", "peak memory, trainer GiB", "failed requests",
)  # fmt: skip
FREED_AT_ONCE = {
    "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
}  # fmt: skip
"""Memory that is freed goes back to the system at once, so that a rise of what is resident is what is held."""
GRACE = 20.0
"""Seconds that a part has to end its own processes once it is told to."""


@dataclass(frozen=True)
class Part:
    """A part of the session: a command whose last line is JSON, figure by name.

    Args:
        name: What the table calls it.
        command: The command.
        seconds: Its time-out.
        environment: Variables beside those of this process.
    """

    name: str
    command: Sequence[str]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


def list_parts(model: Path, out: Path) -> list[Part]:
    """List the parts, in the order in which they run: the cheap and the most telling first.

    Args:
        model: Folder for the model that parts share.
        out: Folder for the results of the benchmarks that are parts.
    """

    def own(name: str) -> list[str]:
        return [sys.executable, __file__, "--part", name, "--out", str(out)]

    step = [sys.executable, str(BENCHMARKS / "device_step.py"), "--model", str(model)]
    return [
        Part("versions", own("versions"), 60.0),
        Part("training step", [*step, "--only", "lengths"], 150.0, FREED_AT_ONCE),
        Part("engine and trainer", [*own("colocated"), "--model", str(model)], 240.0),
        Part("learning", own("learning"), 200.0),
        Part("beside TRL", [*step, "--only", "compare"], 120.0),
    ]


def run_parts(parts: Sequence[Part], seconds: float) -> Iterator[tuple[str, Row]]:
    """Run parts one after the other and yield the figures of each.

    Args:
        parts: The parts.
        seconds: Time for all; what is left decides of the last ones.
    """
    end = time.monotonic() + seconds
    for part in parts:
        left = end - time.monotonic()
        began = time.monotonic()
        print(f"== {part.name}", file=sys.stderr, flush=True)
        row = run_part(part, min(part.seconds, left)) if left > 0 else {"outcome": "not measured: no time was left"}
        yield part.name, {**row, "seconds": round(time.monotonic() - began, 1)}


def run_part(part: Part, seconds: float) -> Row:
    """Run a part; its figures, or what became of it as `outcome`."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as log:
        environment = {**os.environ, **part.environment}
        process = subprocess.Popen(part.command, env=environment, stdout=output, stderr=log, process_group=0)
        outcome = ""
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            end_tree(process)
            outcome = f"not measured: took more than {seconds:g} s"
        except BaseException:
            end_tree(process)
            raise
        printed, said = (_read_lines(file) for file in (output, log))
    print("\n".join(said), file=sys.stderr)
    if not outcome and process.returncode:
        outcome = f"failed with status {process.returncode}: {(said or [''])[-1][:200]}"
    # A part prints again whenever it has a figure more, so that one cut short keeps those before.
    try:
        figures: Row = json.loads(printed[-1])
    except (IndexError, ValueError):
        return {"outcome": outcome or "failed: its last line is no JSON"}
    return {**figures, "outcome": outcome} if outcome else figures


def _read_lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return [line for line in file.read().splitlines() if line.strip()]


def end_tree(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all it started: by Ctrl-C's signal, so that it may clean up, then by force."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(started, timeout=GRACE)


def tell_versions() -> Row:
    """The versions of all that takes part, and the card."""
    figures = {name: _find_version(name) for name in PACKAGES}
    try:
        command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        card = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        card = "none"
    machine = {"date": str(date.today()), "cores": psutil.cpu_count(), "card, memory, driver": card}
    return {**machine, "python": sys.version.split()[0], **figures}


def find_column() -> str:
    """The column that this machine fills.

    Raises:
        SystemExit: If there is a card that torch can't use: figures of the processor would stand in its column.
    """
    command = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    is_usable = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "True"
    if not is_usable and (card := tell_versions()["card, memory, driver"]) != "none":
        raise SystemExit(
            f"torch {_find_version('torch')} can't use {card}: install its build for CUDA, or a newer driver."
        )
    return "gpu" if is_usable else "cpu"


def _find_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def measure_colocated(options: argparse.Namespace) -> Row:
    """Figures of `gpu_colocate.py`, with fewer updates and a shorter load."""
    command = [sys.executable, str(BENCHMARKS / "gpu_colocate.py"), "--out", str(options.out)]
    command += ["--model", str(options.model), "--steps", "8", "--seconds", "15"]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait(GRACE)
        raise
    if code:
        raise SystemExit(code)
    columns = json.loads((options.out / "gpu_colocate.json").read_text())
    (figures,) = (column for column in columns.values() if column is not None)
    return {name: figures[name] for name in COLOCATED}


def measure_learning() -> Row:
    """Figures of the README's first command."""
    from processes import run_training

    with tempfile.TemporaryDirectory() as place:
        metrics = run_training(Path(place), "--persona", "student", timeout=600)
    return {name.replace("_", " "): metrics[name] for name in LEARNING}


def make_page(columns: dict[str, dict[str, Row] | None]) -> str:
    """The results as Markdown: a line for each figure that any column has."""
    lines = ["| part | figure | " + " | ".join(COLUMNS.values()) + " |", "|---|---|---|---|"]
    for part in dict.fromkeys(name for column in columns.values() for name in column or {}):
        rows = {name: (column or {}).get(part, {}) for name, column in columns.items()}
        names = (figure for row in rows.values() for figure in row)
        figures = dict.fromkeys(figure for figure in names if figure not in ("outcome", "seconds"))
        # A part that failed or was cut short says why, whatever figures it has.
        for figure in [*figures, *(["outcome"] if any("outcome" in row for row in rows.values()) else ()), "seconds"]:
            cells = [format_cell(rows[name], figure) for name in COLUMNS]
            lines.append(f"| {part} | {figure} | {' | '.join(cells)} |")
    explanation = (__doc__ or "").split("\n\n")[1]
    return f"# A session on a GPU\n\n{explanation}\n\n" + "\n".join(lines) + "\n"


def format_cell(row: Row, figure: str) -> str:
    """A figure, or why there is none."""
    value = row.get(figure, row.get("outcome", "ok" if row and figure == "outcome" else "not measured"))
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else str(_round(value)).replace("|", "/")


def _round(value: Any) -> Any:
    return f"{value:,.0f}" if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all parts")
    parser.add_argument("--part", choices=("versions", "colocated", "learning"), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        own = {"versions": tell_versions, "learning": measure_learning}
        print(json.dumps(measure_colocated(options) if options.part == "colocated" else own[options.part]()))
        return 0
    column = find_column()
    file = options.out / "gpu_session.json"
    columns = json.loads(file.read_text()) if file.exists() else dict.fromkeys(COLUMNS)
    columns[column] = {}
    with tempfile.TemporaryDirectory() as place:
        model, out = Path(place) / "model", Path(place) / "results"
        model.mkdir()
        # What is measured is written at once, in case the session is cut off.
        for name, row in run_parts(list_parts(model, out), 60 * options.minutes):
            columns[column][name] = row
            write_results(options.out, "gpu_session", columns, make_page(columns))
    return int(any("outcome" in row for row in columns[column].values()))


if __name__ == "__main__":
    sys.exit(main())
