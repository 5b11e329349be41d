"""A publication: a fresh temporary folder that holds what may be uploaded of one policy."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError
from clawrl_trl.hub.base_model import BaseModel
from clawrl_trl.hub.card import make_card
from clawrl_trl.hub.evaluation import read_evaluation
from clawrl_trl.hub.files import ADAPTER_CONFIG, CARD, RECEIPT, stage
from clawrl_trl.hub.receipt import count_data, describe_policy, make_receipt, read_record
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies import PolicyStore


@dataclass(frozen=True)
class Publication:
    """The files of one upload.

    Args:
        folder: The temporary folder; every file in it is meant to be uploaded.
        receipt: Content of its training receipt.
    """

    folder: Path
    receipt: Mapping[str, Any]

    def files(self) -> dict[str, int]:
        """Return the names and sizes in bytes."""
        return {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}


@contextmanager
def stage_policy(
    ledger: Ledger,
    store: PolicyStore,
    repo_id: str,
    *,
    version: int | None = None,
    base: BaseModel | None = None,
    served_base: BaseModel | None = None,
    tokenizer: Path | None = None,
    tags: tuple[str, ...] = (),
) -> Iterator[Publication]:
    """Stage a policy version of a run; the folder goes when the block ends.

    Args:
        ledger: The run's ledger.
        store: Its policy folders, which lie in the run folder.
        repo_id: Repository it will be published in; the card names it.
        version: Number of the version. Default: the one that serves.
        base: Its base model. Default: the one that its record or its adapter names.
        served_base: Its base model where nothing else names one, as with versions of an older release.
        tokenizer: Folder with the tokenizer. Default: the base model's if it is on this machine, else the run's.
        tags: Further tags of the card.

    Raises:
        UserError: If there is no such version, it is the base model, was rejected, or its files are damaged.
    """
    with ledger.reader() as tx:
        policy = _check_publishable(policies.serving(tx) if version is None else policies.get(tx, version), version)
        facts, data = describe_policy(policy), count_data(tx, policy.version)
        newest = policies.latest(tx).version == policy.version
    weights = _check_folder(store, policy)
    record = read_record(weights)
    # What the version itself names comes first: the run's settings may have changed since.
    base = base or _read_base(weights, record) or served_base or BaseModel("local")
    evaluation = read_evaluation(store.root.parent / "metrics.json", policy.version, newest=newest)
    with tempfile.TemporaryDirectory(prefix="clawrl-push-") as temporary:
        folder = Path(temporary)
        # Versions are immutable, so links to their weights hold while the upload runs.
        stage(folder, weights, (tokenizer, base.folder, store.root.parent), base=_public_base_name(base), linked=True)
        receipt = make_receipt(folder, base, record, facts, data) | {"evaluation": evaluation}
        yield _write_papers(folder, receipt, repo_id, tags)


@contextmanager
def stage_weights(
    weights: Path,
    repo_id: str,
    record: Mapping[str, Any],
    *,
    data: Mapping[str, Any],
    linked: bool,
    tags: tuple[str, ...] = (),
) -> Iterator[Publication]:
    """Stage an adapter or a model that no ledger knows; the folder goes when the block ends.

    Args:
        weights: Folder that holds it and its tokenizer, among other things perhaps.
        repo_id: Repository it will be published in.
        record: How it was trained, as in `training.json`.
        data: Counts of what it was trained on.
        linked: Link large files, which must then stay as they are, instead of copying them.
        tags: Further tags of the card.

    Raises:
        UserError: If the folder holds no weights.
    """
    base = _read_base(weights, record) or BaseModel("local")
    with tempfile.TemporaryDirectory(prefix="clawrl-push-") as temporary:
        folder = Path(temporary)
        stage(folder, weights, (base.folder,), base=_public_base_name(base), linked=linked)
        receipt = make_receipt(folder, base, record, {}, data)
        yield _write_papers(folder, receipt, repo_id, tags)


def _check_publishable(policy: Policy | None, version: int | None) -> Policy:
    if policy is None:
        raise UserError(f"There is no policy version {version}: see 'clawrl policies'.")
    if policy.state == "pruned":
        raise UserError(f"Version {policy.version} was pruned, its weights are gone: choose another version.")
    if policy.path is None:
        raise UserError("Version 0 is the base model, there is nothing to publish: train first, or choose another.")
    if policy.state == "rejected":
        raise UserError(f"Version {policy.version} was rejected: choose one that has served, see 'clawrl policies'.")
    return policy


def _check_folder(store: PolicyStore, policy: Policy) -> Path:
    """Return the folder of a version after checking that its weights are those that were committed.

    Raises:
        UserError: If it is gone or its weights are others.
    """
    try:
        intact = policy.sha256 is None or store.sha256(policy.version) == policy.sha256
    except FileNotFoundError:
        raise UserError(f"The folder of version {policy.version} is gone: choose another version.") from None
    if not intact:
        raise UserError(f"The weights of version {policy.version} are damaged: choose another version.")
    return store.folder(policy.version)


def _read_base(weights: Path, record: Mapping[str, Any]) -> BaseModel | None:
    """Read the base model that the record names, else the adapter; `None` if neither does."""
    adapter = weights / ADAPTER_CONFIG
    config = json.loads(adapter.read_text(encoding="utf-8")) if adapter.is_file() else {}
    model = record.get("base_model") or config.get("base_model_name_or_path")
    return BaseModel.of(model, record.get("base_revision") or config.get("revision")) if model else None


def _public_base_name(base: BaseModel) -> str | None:
    """Return the base model that `adapter_config.json` may name: a repository, and nothing else."""
    return base.name if base.kind == "hub" else None


def _write_papers(folder: Path, receipt: Mapping[str, Any], repo_id: str, tags: tuple[str, ...]) -> Publication:
    (folder / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    # Last, since its header depends on the files beside it.
    (folder / CARD).write_text(make_card(receipt, repo_id, files=folder, tags=tags))
    return Publication(folder, receipt)
