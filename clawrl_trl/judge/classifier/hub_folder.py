"""A folder of the Hugging Face Hub: found in the Hub's cache without a request, or fetched into it."""

from dataclasses import dataclass
from pathlib import Path

from clawrl_trl.errors import UserError


@dataclass(frozen=True)
class HubFolder:
    """A folder of the Hugging Face Hub at one revision, kept in the Hub's cache.

    Attributes:
        repository, revision, files: What is fetched.
        size: Of all files, for people.
        instead: What to do where it can't be had.
    """

    repository: str
    revision: str
    files: tuple[str, ...]
    size: str
    instead: str

    def look(self) -> Path | None:
        """Look for it in the cache, without a request."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = self.download(local_files_only=True)
        except LocalEntryNotFoundError:
            return None
        # A download that was cut off leaves a folder without some of them.
        return folder if all((folder / name).is_file() for name in self.files) else None

    def fetch(self) -> Path:
        """Fetch it into the cache.

        Raises:
            UserError: If it can't be had.
        """
        import httpx
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return self.download(local_files_only=False)
        # The Hub's own errors are httpx's, those of a full disk the system's.
        except (OSError, httpx.HTTPError, LocalEntryNotFoundError) as failure:
            raise UserError(
                f"{self.repository} ({self.size}) can't be fetched from the Hub: try again, point HF_HOME to a cache "
                f"that has it, or {self.instead} ({failure})"
            ) from failure

    def download(self, *, local_files_only: bool) -> Path:
        """The folder, after a request unless `local_files_only`."""
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            self.repository,
            revision=self.revision,
            allow_patterns=list(self.files),
            local_files_only=local_files_only,
        )
        return Path(folder)
