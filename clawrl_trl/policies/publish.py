"""Publishing: from a candidate in the ledger to the version that serves.

The order is gate, engine, ledger. Serving changes only in the ledger, in one transaction, after the engine holds
the version; requests in flight finish on the adapter they began with (a whole model in place of another goes on
with them, and the engine tells which token is whose). An engine that is down costs nothing but
freshness: the candidate waits, and the next version that is published takes its place.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy.orm import Session
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from clawrl_trl.engines.client import EngineError
from clawrl_trl.engines.kinds import CANT_EXCHANGE, adapter_obstacle
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, events, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies.checksums import find_damage
from clawrl_trl.policies.gate import Candidate, FirstGate, Gate, GateReport
from clawrl_trl.policies.versions import PolicyStore
from clawrl_trl.policy_names import name_policy

logger = logging.getLogger(__name__)


class Publisher:
    """Takes candidates of one run through the gate into the engine.

    Args:
        ledger: The run's ledger.
        store: The run's policy folders.
        engine: Client of the engine that serves; `None` promotes in the ledger alone (training offline).
        gate: What a candidate must pass.
        attempts: Tries to load a version into the engine before the candidate is left waiting.
        longest_wait_s: Longest pause between two tries, in seconds; it doubles from 0.2.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: PolicyStore,
        *,
        engine: SyncEngineClient | None = None,
        gate: Gate | None = None,
        attempts: int = 4,
        longest_wait_s: float = 2.0,
    ) -> None:
        self.ledger = ledger
        self.store = store
        self.engine = engine
        self.gate = FirstGate() if gate is None else gate
        self.attempts = attempts
        self.longest_wait_s = longest_wait_s

    def find_merge_reason(self, config: Mapping[str, object], modules: Iterable[str]) -> str | None:
        """Why an adapter has to be merged into a whole model for the engine, or `None`.

        An engine that can't be asked now may turn out to be a vLLM, so for that the answer is on the safe side.

        Args:
            config: The adapter's `adapter_config.json`.
            modules: Paths of the modules it changes.

        Raises:
            UserError: If the engine can serve neither the adapter nor a whole model.
        """
        obstacle = adapter_obstacle(config, modules)
        if obstacle is None or self.engine is None:
            return None
        serving = self._ask_serving()
        if serving == "not":
            raise UserError(f"The engine can't serve this adapter ({obstacle}), and {CANT_EXCHANGE}.")
        return None if serving == "by name" else obstacle

    def check_whole_models(self) -> None:
        """Make sure that the engine can serve a whole model, where it can be asked.

        Raises:
            UserError: If it can't.
        """
        if self._ask_serving() == "not":
            raise UserError(f"All weights are to be trained, but {CANT_EXCHANGE}.")

    def _ask_serving(self) -> str | None:
        """Ask how the engine serves whole models; `None` if that can't be found out now."""
        try:
            return None if self.engine is None else self.engine.serving().whole
        except EngineError:
            return None

    def publish(self, candidate: Candidate) -> str:
        """Check a candidate and let it serve.

        Returns:
            The version's state afterwards: `"serving"`, `"rejected"`, or `"candidate"` when the engine is down.
        """
        report = self._check(candidate)
        with self.ledger.transaction() as tx:
            policies.lock(tx)
            policy = _existing(tx, candidate.version)
            # A rollback rejects the candidates that wait.
            if policy.state != "candidate":
                return policy.state
            policy.metrics = {**policy.metrics, **report.metrics}
            if not report.passed:
                logger.warning("policy version %d is refused by the gate: %s", candidate.version, report.reason)
                policies.reject(tx, candidate.version, f"gate: {report.reason}")
                return "rejected"
        # The engine before the ledger: what the ledger calls serving must be servable.
        if not self._load(candidate):
            return self._state(candidate.version)
        with self.ledger.transaction() as tx:
            policies.lock(tx)
            # A rollback may have come while the engine was loading.
            if _existing(tx, candidate.version).state == "candidate":
                _supersede(tx, candidate.version)
                policies.promote(tx, candidate.version)
        return self._state(candidate.version)

    def _check(self, candidate: Candidate) -> GateReport:
        with self.ledger.reader() as tx:
            sha256 = _existing(tx, candidate.version).sha256
        damage = find_damage(candidate.folder, sha256)
        return self.gate.check(candidate) if damage is None else GateReport(False, f"damaged: {damage}")

    def _load(self, candidate: Candidate) -> bool:
        """Return whether the engine holds the candidate; a refusal for good rejects it."""
        if self.engine is None:
            return True
        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential(multiplier=0.2, max=self.longest_wait_s),
            retry=retry_if_exception(lambda error: isinstance(error, EngineError) and error.retryable),
            reraise=True,
        )
        try:
            retrying(self.engine.load_policy, name_policy(candidate.version), candidate.folder)
        except EngineError as error:
            with self.ledger.transaction() as tx:
                events.log(tx, "policy_not_loaded", str(candidate.version), status=error.status)
                # An engine that is down costs freshness alone: the candidate waits.
                if not error.retryable and _existing(tx, candidate.version).state == "candidate":
                    policies.reject(tx, candidate.version, f"engine: {error.message[:200]}")
            logger.warning("the engine did not load policy version %d: %s", candidate.version, error)
            return False
        return True

    def _state(self, version: int) -> str:
        with self.ledger.reader() as tx:
            return _existing(tx, version).state


def _supersede(tx: Session, version: int) -> None:
    for policy in policies.all(tx):
        if policy.state == "candidate" and policy.version < version:
            policies.reject(tx, policy.version, f"superseded by {version}")


def _existing(tx: Session, version: int) -> Policy:
    policy = policies.get(tx, version)
    if policy is None:
        raise KeyError(f"there is no policy version {version}")
    return policy


def rollback(ledger: Ledger, to: int | None = None, *, store: PolicyStore | None = None) -> Policy:
    """Let an earlier version serve again; the trainer goes on from it.

    Candidates that wait are rejected, for they descend from what is being left.

    Args:
        ledger: The run's ledger.
        to: Version to serve. Default: the nearest ancestor of the serving version that has served and is not damaged.
        store: The run's policy folders; without them, a version with a relative path is not looked at.

    Returns:
        The version that serves now.

    Raises:
        UserError: If there is nothing to roll back to.
    """
    with ledger.reader() as tx:  # the files are read outside the write lock, and their digests known from then on
        _rollback_target(tx, policies.serving(tx), to, store)
    with ledger.transaction() as tx:
        # What may serve is asked again: it may have been pruned meanwhile.
        policies.lock(tx)
        now = policies.serving(tx)
        target = _rollback_target(tx, now, to, store)
        for policy in policies.all(tx):
            if policy.state == "candidate":
                policies.reject(tx, policy.version, f"rolled back to {target.version}")
        events.log(tx, "rollback", str(target.version), before=now.version)
        return policies.promote(tx, target.version)


def _rollback_target(tx: Session, now: Policy, to: int | None, store: PolicyStore | None) -> Policy:
    version = _last_served_before(tx, now, store) if to is None else to
    if version is None:
        raise UserError(f"Version {now.version} is the base model, there is nothing before it.")
    target = policies.get(tx, version)
    if target is not None and target.state == "pruned":
        raise UserError(
            f"Version {version} was pruned, its weights are not on the disk any more: choose one of "
            f"{_join(policy.version for policy in policies.all(tx) if policy.state == 'retired')}."
        )
    if target is None or target.state in ("rejected", "candidate"):
        usable = _join(policy.version for policy in policies.all(tx) if policy.state in ("retired", "serving"))
        raise UserError(f"There is no version {version} that has served: choose one of {usable}.")
    if damage := _damage(target, store):
        raise UserError(f"Version {version} can't serve, {damage} ({target.path}): choose another version.")
    return target


def _damage(policy: Policy, store: PolicyStore | None) -> str | None:
    if policy.path is None or (store is None and not Path(policy.path).is_absolute()):
        return None
    return find_damage(Path(policy.path) if store is None else store.locate(policy.path), policy.sha256)


def _last_served_before(tx: Session, now: Policy, store: PolicyStore | None) -> int | None:
    before = now
    while before.parent is not None:
        before = _existing(tx, before.parent)
        if before.state == "retired" and _damage(before, store) is None:
            return before.version
    return None


def _join(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
