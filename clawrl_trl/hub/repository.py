"""A model repository on the Hub: creation, checks, and commits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clawrl_trl.errors import UserError
from clawrl_trl.hub.files import may_be_published

if TYPE_CHECKING:
    from concurrent.futures import Future

    from huggingface_hub import CommitInfo

T = TypeVar("T")

_TOKEN_HELP = (
    "get one that may write at https://huggingface.co/settings/tokens, then run 'hf auth login' or set HF_TOKEN"
)
_LEAKS = ("ledger.db", "engine.json", "gateway.json", "training_args.bin")
"""Files of a run folder that an upload of whole folders would have published."""


class Repository:
    """A repository of the token's owner.

    Args:
        name: `NAME` or `OWNER/NAME`.
        token: Access token. Default: `HF_TOKEN`, or the one that `hf auth login` saved.

    Raises:
        UserError: If the name is not valid, there is no token, or the Hub refuses it or can't be reached.
    """

    def __init__(self, name: str, *, token: str | None = None) -> None:
        from huggingface_hub import HfApi, get_token

        check_name(name)
        if not (token or get_token()):
            raise UserError(f"There is no token for the Hugging Face Hub: {_TOKEN_HELP}.")
        self._api = HfApi(token=token)
        with _hub_errors(name):
            # `create_repo` adds the owner to a bare name, a commit does not.
            self.id = name if "/" in name else f"{self._api.whoami()['name']}/{name}"

    def make(self, *, private: bool) -> None:
        """Create the repository unless it exists.

        Raises:
            UserError: If it exists and is public although `private` was asked for, or the Hub refuses.
        """
        with _hub_errors(self.id):
            self._api.create_repo(self.id, private=private, exist_ok=True)
            info: Any = self._api.model_info(self.id)
        # `exist_ok` leaves the visibility of a repository that exists as it is.
        if private and info.private is False:
            raise UserError(
                f"{self.id} exists and is public: make it private on the Hub, choose another repository, or say that "
                "it may be public (--public; of a trainer: --hub_private_repo false)."
            )
        # The history of a repository keeps what a later commit removes, so a cleanup would not help.
        leaked = sorted({Path(file.rfilename).name for file in info.siblings or []} & set(_LEAKS))
        if leaked:
            raise UserError(
                f"{self.id} already holds {', '.join(leaked)} of a run folder: delete that repository, for its "
                "history keeps them, and push to a new one."
            )

    def commit(self, folder: Path, message: str, *, revision: str | None = None) -> "CommitInfo":
        """Upload the files of a folder in one commit.

        Args:
            folder: A staged publication.
            message: The commit's summary.
            revision: Branch. Default: `main`.

        Raises:
            UserError: If the Hub refuses it or can't be reached.
            ValueError: If the folder holds a file that is not on the list.
        """
        from huggingface_hub import CommitOperationAdd

        paths = sorted(folder.iterdir())
        # Whatever put the folder together: nothing off the list leaves this machine.
        if strays := [path.name for path in paths if not may_be_published(path.name)]:
            raise ValueError(f"{', '.join(strays)} may not be published")
        operations = [CommitOperationAdd(path.name, path) for path in paths]
        with _hub_errors(self.id):
            return self._api.create_commit(self.id, operations, commit_message=message, revision=revision)

    def in_background(self, upload: "Callable[[], T]") -> "Future[T]":
        """Call a function in this repository's one thread; the process waits for it before it ends."""
        return self._api.run_as_future(upload)


def check_name(name: str) -> None:
    """Check that a repository can have this name.

    Raises:
        UserError: If it can't.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(f"{name!r} is no repository name: use NAME or OWNER/NAME.") from None


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the Hub, or of the connection to it, into a `UserError` of one line."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        remedy = _TOKEN_HELP if status in (401, 403) else "try again later with 'clawrl push'"
        raise UserError(f"The Hub answered {status} for {name} ({_first_words(error)}): {remedy}.") from error
    except (httpx.TransportError, OfflineModeIsEnabled, OSError, RuntimeError) as error:
        raise UserError(f"The push to {name} failed ({_first_words(error)}): try again with 'clawrl push'.") from error


def _first_words(error: BaseException) -> str:
    text = " ".join((getattr(error, "server_message", None) or str(error) or type(error).__name__).split())
    return text[:160].rstrip(".")
