"""Removes the symbolic links of a work folder that lead out of it, before anybody follows them who sees more."""

import os
from pathlib import Path, PurePosixPath

_HERE = (PurePosixPath("/app"), PurePosixPath("/work"))
_PUBLIC = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt/python", "/dev/null")
"""Where a link may lead: the system's own, which is the same for everybody."""
_MOST = 40
"""Links in a row, as the kernel has it."""


def remove_links(work: Path) -> None:
    """Remove the links that lead out of a work folder; nothing may run in it.

    Args:
        work (`Path`): The work folder, on the host; inside it is at `/app` and at `/work`.
    """
    waiting = [os.fspath(work)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # a folder that its owner may not read
            continue
        for entry in entries:
            if entry.is_symlink():
                if _leads_out(work, Path(entry.path)):
                    _unlink(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def _unlink(link: Path) -> None:
    try:
        link.unlink()
    except PermissionError:  # its folder is read-only
        link.parent.chmod(0o755)
        link.unlink()


def _leads_out(work: Path, link: Path) -> bool:
    """Follow a link as it is followed inside, without leaving the work folder."""
    place = _HERE[0] / link.relative_to(work).parent
    parts = list(reversed(PurePosixPath(link.readlink()).parts))
    followed = 1
    while parts:
        part = parts.pop()
        if part == "/":
            place = PurePosixPath("/")
        elif part == "..":
            place = place.parent
        else:
            place = place / part
            root = next((root for root in _HERE if place.is_relative_to(root)), None)
            if root is None:
                continue
            here = work / place.relative_to(root)
            if here.is_symlink():
                followed += 1
                if followed > _MOST:
                    return True
                parts += reversed(PurePosixPath(here.readlink()).parts)
                place = place.parent
    return not any(place.is_relative_to(root) for root in (*_HERE, *_PUBLIC))
