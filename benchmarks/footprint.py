"""Time and memory of a command with everything it starts: `python benchmarks/footprint.py COMMAND...`.

Memory is the proportional set size (shared pages counted once, divided among those who share them), summed over the
process tree, sampled twice a second.
"""

import subprocess
import sys
import time

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
