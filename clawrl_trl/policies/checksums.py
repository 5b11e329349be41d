"""Checks of a policy's files against what was noted when they were written.

The ledger has the SHA-256 of a version's weights; `SHA256SUMS` in its folder, in the form of `sha256sum`, has those of
all its other files. Versions of earlier releases have no such list, and their weights alone are checked.
"""

import errno
import hashlib
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

TRAINING_STATE = "training_state"
WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin", "model.safetensors", "pytorch_model.bin")
CHECKSUMS = "SHA256SUMS"
REMEMBERED = 4096
"""Digests kept in memory; files of the same name, size and time are not read again."""

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def list_weight_files(folder: Path) -> list[Path]:
    """A version's weight files, shards included, in order of name.

    Raises:
        FileNotFoundError: If the folder holds none.
    """
    files = sorted(filter(_holds_weights, folder.glob("*")))
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no weights", str(folder))
    return files


def _holds_weights(path: Path) -> bool:
    return path.name in WEIGHT_FILES or path.suffix == ".safetensors"


def compute_digest(*paths: Path) -> str:
    """SHA-256 over files, one after the other, in hexadecimal.

    Raises:
        OSError: If one can't be read.
    """
    stats = [path.stat() for path in paths]
    pairs = zip(paths, stats, strict=True)
    # With inode and time in the key, a file that was replaced is read again.
    return _digest_files(tuple((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in pairs))


@lru_cache(maxsize=REMEMBERED)
def _digest_files(files: tuple[tuple[str, int, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, *_ in files:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def write_checksums(folder: Path) -> None:
    """Note the digests of a complete policy folder's files, its weights apart."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # The digest of the weights is kept by the ledger.
    noted = [path for path in files if path.parent != folder or not _holds_weights(path)]
    lines = [f"{compute_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in noted]
    (folder / CHECKSUMS).write_text("".join(lines))


def find_damage(folder: Path, sha256: str | None) -> str | None:
    """Describe what is wrong with the files that an engine or a trainer loads of a version; `None`: nothing.

    Args:
        folder: The version's folder.
        sha256: Digest of its weights, from the ledger; `None` for a version without one.
    """
    if not folder.is_dir():
        return "its folder is gone"
    try:
        if sha256 is not None and compute_digest(*list_weight_files(folder)) != sha256:
            return "its weights are not those that were trained"
    except OSError as error:
        return str(error.strerror or error)
    return _find_changed(folder, lambda name: not name.startswith(f"{TRAINING_STATE}/"))


def find_state_damage(folder: Path) -> str | None:
    """Describe what is wrong with a version's training state; `None`: nothing."""
    return _find_changed(folder, lambda name: name.startswith(f"{TRAINING_STATE}/"))


def _find_changed(folder: Path, is_checked: Callable[[str], bool]) -> str | None:
    # Written by an earlier release, which made no list.
    if not (folder / CHECKSUMS).is_file():
        return None
    listed = map(_LINE.fullmatch, (folder / CHECKSUMS).read_text(errors="replace").splitlines())
    for expected, name in (line.groups() for line in listed if line is not None):
        try:
            if is_checked(name) and compute_digest(folder / name) != expected:
                return f"{name} has changed"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None
