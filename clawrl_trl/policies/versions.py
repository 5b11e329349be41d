"""Policy folders on disk: one immutable folder per version.

A folder appears under its final name only when it is complete and on the disk: it is filled under a temporary
name, synced, and renamed. The ledger's row comes after the rename, so a crash may leave the folder that comes after
the last one a row names; any other folder without a row is another ledger's, and stays. `training_state/` inside
holds what only the trainer needs; without it the folder is a plain PEFT adapter (or, for full fine-tuning, a plain
model) that any engine loads.
"""

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from clawrl_trl.errors import UserError
from clawrl_trl.policies.checksums import TRAINING_STATE, compute_digest, list_weight_files, write_checksums
from clawrl_trl.policy_names import name_policy, parse_policy_name
from clawrl_trl.run import make_private, take_from_others

logger = logging.getLogger(__name__)


class PolicyStore:
    """The `policies/` folder of a run.

    Args:
        root: The folder; made when it is first written to.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    def folder(self, version: int) -> Path:
        """Return the folder of a version, whether or not it exists."""
        return self.root / name_policy(version)

    def locate(self, path: str) -> Path:
        """Folder of a version by its path in the ledger: relative to the run folder, or absolute in older rows.

        The run folder may have been moved or copied since, so that a folder of that name in it comes first.
        """
        here = self.root / Path(path).name
        return here if here.is_dir() else self.root.parent / path

    def begin(self, version: int) -> Path:
        """An empty temporary folder to fill, with its `training_state/`."""
        folder = self.root / f".tmp-{name_policy(version)}"
        # An interrupted update may have left one.
        shutil.rmtree(folder, ignore_errors=True)
        for path in (self.root, folder, folder / TRAINING_STATE):
            make_private(path)
        return folder

    def finish(self, version: int) -> Path:
        """Note the checksums of a version's temporary folder, sync it to disk and give it its final name.

        Raises:
            FileExistsError: If the version exists already; versions are immutable.
        """
        temporary, final = self.root / f".tmp-{name_policy(version)}", self.folder(version)
        if final.exists():
            raise FileExistsError(f"{final} exists already")
        write_checksums(temporary)
        for path in sorted(temporary.rglob("*")):
            take_from_others(path)
            _sync(path)
        _sync(temporary)
        # After all files: a folder of the final name is complete even if the power fails.
        temporary.rename(final)
        _sync(self.root)
        return final

    def sha256(self, version: int) -> str:
        """Fingerprint of a version's weights: over its weight files, shards included, in order of name.

        Raises:
            FileNotFoundError: If the folder holds no weights.
        """
        return compute_digest(*list_weight_files(self.folder(version)))

    def training_state(self, version: int) -> Path | None:
        """The trainer's half of a version, or `None` when it was pruned or never written."""
        folder = self.folder(version) / TRAINING_STATE
        return folder if (folder / "trainer_state.json").is_file() else None

    def clean_up(self, known: Iterable[int], leftover: int | None) -> list[str]:
        """Remove what an interrupted update left behind: temporary folders, and the version it was to become.

        Args:
            known: Versions that the ledger names.
            leftover: The version that an interrupted update may have left, if there can have been one.

        Returns:
            Names of what was removed.

        Raises:
            UserError: If there are other versions that the ledger does not name; then nothing is removed.
        """
        folders = [path for path in sorted(self.root.glob("*")) if path.is_dir()]
        expected = {name_policy(version) for version in (*known, leftover) if version is not None}
        strays = [
            path.name for path in folders if parse_policy_name(path.name) is not None and path.name not in expected
        ]
        if strays:
            names = ", ".join(strays[:3]) + (", ..." if strays[3:] else "")
            raise UserError(
                f"The ledger does not know {names} in {self.root}: go back to the ledger they were trained with, "
                "choose another run folder, or move this one away."
            )
        remains = [path for path in folders if path.name.startswith(".tmp-")]
        if leftover is not None and self.folder(leftover).is_dir():
            remains.append(self.folder(leftover))
        for path in remains:
            shutil.rmtree(path)
        return [path.name for path in remains]

    def remove(self, version: int) -> None:
        """Remove a version's folder, or the link in its place; nothing happens when there is none.

        Raises:
            OSError: If it can't be removed.
        """
        folder = self.folder(version)
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            shutil.rmtree(folder)
        else:
            return
        _sync(self.root)

    def prune(self, keep: Iterable[int]) -> list[int]:
        """Remove the training state of every version but `keep`; the weights stay, for rollback.

        One that can't be removed stays, with a warning, and is tried again at the next call.

        Returns:
            The versions that were pruned.
        """
        spared = set(keep)
        pruned = []
        for path in sorted(self.root.glob(f"*/{TRAINING_STATE}")):
            version = parse_policy_name(path.parent.name)
            if version is None or version in spared:
                continue
            try:
                shutil.rmtree(path)
            except OSError as error:
                # No reason to end training: what is left is found again by the next call.
                logger.warning("the training state of policy version %d can't be removed: %s", version, error)
            else:
                pruned.append(version)
        return pruned


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
