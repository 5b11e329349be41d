"""Outcome of a run: the versions that it trained and whether one of them served."""

from collections import Counter
from collections.abc import Sequence

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies, samples, turns
from clawrl_trl.ledger.schema import Policy

REMEDIES = {
    "gate: too far": "lower --learning_rate, or raise --max_kl",
    "gate": "lower --learning_rate",
    "engine": "logs/engine.log in the run's folder says more",
    "superseded": "see that the engine answers, then start again",
}
"""What to do about a refusal, by the beginning of its reason; the first that fits counts."""


def read_last_version(ledger: Ledger) -> int:
    """Read the highest version that a ledger has, refused ones included; 0 is the base model."""
    with ledger.reader() as tx:
        return policies.next_version(tx) - 1


def check_versions(ledger: Ledger, before: int) -> str | None:
    """Look at what a run has published.

    Args:
        ledger (`Ledger`): The run's, when training is over.
        before (`int`): The highest version when it began.

    Returns:
        `str` or `None`: A line about a run that trained nothing, with what became of the samples.

    Raises:
        UserError: If versions were trained and every one of them was refused.
    """
    with ledger.reader() as tx:
        versions = [policy for policy in policies.all(tx) if policy.version > before]
        captured, counts = sum(turns.counts(tx).values()), samples.counts(tx)
    if not versions:
        return (
            f"No version was trained: of {captured} replies in the ledger {counts['ready']} samples wait and "
            f"{counts['dropped']} were dropped."
        )
    if all(policy.state == "rejected" for policy in versions):
        raise UserError(_describe_refusals(versions))
    return None


def _describe_refusals(versions: Sequence[Policy]) -> str:
    reasons = Counter(policy.reason or "no reason" for policy in versions)
    # A version that waited and was overtaken says nothing of why the others were refused.
    for reason in list(reasons):
        if reason.startswith("superseded") and len(reasons) > 1:
            del reasons[reason]
    (reason, _), *_ = reasons.most_common(1)
    remedy = next((text for start, text in REMEDIES.items() if reason.startswith(start)), "see the run's logs")
    refused = "its one version was" if len(versions) == 1 else f"all its {len(versions)} versions were"
    return f"The run published nothing, {refused} refused ({reason}): {remedy}."
