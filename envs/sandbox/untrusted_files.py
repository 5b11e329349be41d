"""Files and folders that untrusted code has written, handled without following its links."""

import os
import stat
import subprocess
from pathlib import Path

from clawrl_trl.envs.sandbox.backend import NOBODY


def give_to_sandbox_user(folder: Path) -> None:
    """Give what root put into a work folder to the sandbox's user."""
    # Untrusted code may have left links to files of the host: `-h` and `-P` change the link and never its target, also
    # when it is swapped meanwhile. `--from=0` leaves the files of other users of the host theirs.
    owner = f"{NOBODY}:{NOBODY}"
    subprocess.run(["chown", "-RhP", "--from=0", owner, "--", str(folder)], capture_output=True, check=False)


def remove_folder(folder: Path | None) -> None:
    """Remove a folder that untrusted code has filled."""
    if folder is None:
        return
    # `rm` and not `shutil.rmtree`: it follows no link that is swapped in, and folders nested too deep to recurse into
    # don't stop it.
    removed = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)
    if removed.returncode:  # folders whose owner may not look into them
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)


def read_untrusted_file(file: Path, max_bytes: int = 1 << 20) -> bytes:
    """Read at most `max_bytes` of a file that untrusted code wrote; `b""` for what is no regular file."""
    try:
        # O_NOFOLLOW against a link to a file of the host, O_NONBLOCK against a pipe that nobody writes to.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(descriptor, "rb") as stream:  # noqa: PTH123  (a path would be followed)
        # Checked on the descriptor, since the path may lead elsewhere by now.
        return stream.read(max_bytes) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
