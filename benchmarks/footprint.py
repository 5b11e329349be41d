"""Time and memory of a command with everything it starts: `python benchmarks/footprint.py COMMAND...`.

Memory is the proportional set size (shared pages counted once, divided among those who share them), summed over the
process tree, sampled twice a second.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def measure_tree(root: psutil.Process) -> int:
    """Measure the proportional memory of a process and its descendants, in bytes."""
    total = 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def measure_rise(run: Callable[[], object]) -> int:
    """Measure by how many bytes a call raises the resident memory of this process at its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident size so far is forgotten
    before = psutil.Process().memory_info().rss
    run()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 - before


def main() -> int:
    start, peak = time.monotonic(), 0
    command = subprocess.Popen(sys.argv[1:])
    root = psutil.Process(command.pid)
    while command.poll() is None:
        try:
            peak = max(peak, measure_tree(root))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.5)
    code = command.wait()
    print(f"footprint: {time.monotonic() - start:.0f} s, peak {peak / 2**30:.2f} GiB, exit code {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
