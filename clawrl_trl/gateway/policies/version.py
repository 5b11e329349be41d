"""Policy versions as the gateway reads them from the ledger."""

from dataclasses import dataclass

from clawrl_trl.engines.client import EngineError
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.policy_names import BASE_MODEL, name_policy


@dataclass(frozen=True)
class Version:
    """A policy version as the gateway needs it."""

    number: int
    path: str | None
    state: str
    kind: str = "adapter"
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The model name clients use for this very version."""
        return name_policy(self.number) if self.number else BASE_MODEL


class DamagedPolicy(EngineError):
    """A version whose files are not those that were trained; it is marked in the ledger and not asked for again."""


def read_versions(ledger: Ledger) -> list[Version]:
    """Read all versions, the oldest first."""
    with ledger.reader() as tx:
        return [Version(row.version, row.path, row.state, row.kind, row.sha256) for row in policies.all(tx)]


def read_serving_number(ledger: Ledger) -> int:
    """Read the number of the version that serves."""
    with ledger.reader() as tx:
        return policies.serving(tx).version


def find_serving(versions: list[Version]) -> Version:
    """Return the version that serves."""
    return next(version for version in versions if version.state == "serving")
