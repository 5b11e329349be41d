"""The processes that a test has started, read without tripping over those that end meanwhile."""

import contextlib

import psutil


def living_children(word: str = "", without: str | None = None) -> list[psutil.Process]:
    """Descendants of this process that run, with `word` and not with `without` in their command line."""
    living = []
    for child in psutil.Process().children(recursive=True):
        # A process may end, or become a zombie, between being listed and being asked.
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and word in command and not (without and without in command):
                living.append(child)
    return living


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
