"""Removal of symbolic links that lead out of a work folder.

The agent leaves links that its own sandbox makes harmless; the tests, which can see the expected values, would follow
them and read those in place of the agent's file.
"""

import os
from pathlib import Path, PurePosixPath

_WORK_ROOTS = (PurePosixPath("/app"), PurePosixPath("/work"))
_PUBLIC_ROOTS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt/python", "/dev/null")
"""Where a link may lead: the system's files, which are the same in every sandbox."""
_MAX_LINKS = 40
"""Links followed in a row before a path is refused, as in the kernel."""


def remove_escaping_links(work: Path) -> None:
    """Remove the links that lead out of a work folder; nothing may run in it.

    Args:
        work (`Path`): The work folder, on the host; inside it is at `/app` and at `/work`.
    """
    folders = [os.fspath(work)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # a folder that can't be read: the tests, with the same rights, can't enter it
            continue
        for entry in entries:
            if entry.is_symlink():
                if _leads_out(work, Path(entry.path)):
                    _unlink(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)


def _unlink(link: Path) -> None:
    try:
        link.unlink()
    except PermissionError:  # its folder is read-only
        link.parent.chmod(0o755)
        link.unlink()


def _leads_out(work: Path, link: Path) -> bool:
    """Follow a link as it would be followed inside; on the host its target may be another file."""
    place = _WORK_ROOTS[0] / link.relative_to(work).parent
    parts = list(reversed(PurePosixPath(link.readlink()).parts))
    links_followed = 1
    while parts:
        part = parts.pop()
        if part == "/":
            place = PurePosixPath("/")
        elif part == "..":
            place = place.parent
        else:
            place = place / part
            root = next((root for root in _WORK_ROOTS if place.is_relative_to(root)), None)
            if root is None:
                continue
            host_path = work / place.relative_to(root)
            if host_path.is_symlink():
                # Each link on the way counts: the last target may be reached through a folder that is a link to `/`.
                links_followed += 1
                if links_followed > _MAX_LINKS:
                    return True
                parts += reversed(PurePosixPath(host_path.readlink()).parts)
                place = place.parent
    return not any(place.is_relative_to(root) for root in (*_WORK_ROOTS, *_PUBLIC_ROOTS))
