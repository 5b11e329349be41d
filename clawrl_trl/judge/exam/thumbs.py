"""Agreement of the owner's thumbs with the base model's votes on the same turns.

An exam is short and its questions are not the owner's. A turn with thumbs and words is therefore voted on too, without
the thumbs being shown; the votes decide nothing there and stand in the verdict's detail beside what the thumbs said.
Where they disagree too often the model's votes on words are not used, until they agree again.
"""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.judge.evaluation.summary import Share
from clawrl_trl.judge.turn import JudgedTurn
from clawrl_trl.ledger import schema

VOTED = "voted"
"""Key of a verdict's detail: the score of the votes on a turn that thumbs decided."""
NEWEST = 200
"""Turns with thumbs that are looked at, newest first."""
LEAST_COMPARISONS = 10
MOST_DISAGREEMENT = 0.25
"""Share of disagreements that must be exceeded, with 95 % confidence, for the votes not to be used."""


@dataclass(frozen=True)
class Agreement:
    """How often thumbs and votes had opposite signs.

    Attributes:
        disagreements: Of the turns on which both have a sign.
    """

    disagreements: Share

    @property
    def is_sufficient(self) -> bool:
        """Return whether the votes may be used; too few comparisons say nothing against them."""
        lowest, _ = self.disagreements.find_interval()
        return self.disagreements.total < LEAST_COMPARISONS or lowest <= MOST_DISAGREEMENT

    def describe(self) -> str:
        """Describe the disagreements in a few words."""
        return f"thumbs contradicted {self.disagreements.count} of {self.disagreements.total} of its verdicts"


NO_COMPARISON = Agreement(Share(0, 0))


def has_thumbs(turn: JudgedTurn) -> bool:
    """Return whether the owner gave thumbs on a turn."""
    return any(item.kind == "thumbs" and item.value for item in turn.feedback)


def read_agreement(tx: Transaction, judge: str) -> Agreement:
    """Read the agreement over the newest turns with thumbs.

    Args:
        tx: The open transaction.
        judge: Name of the judge that voted, as its verdicts have it.
    """
    with_thumbs = select(schema.Feedback.turn_id).where(schema.Feedback.kind == "thumbs")
    verdicts = (
        select(schema.Verdict.score, schema.Verdict.detail)
        .where(schema.Verdict.turn_id.in_(with_thumbs))
        .order_by(schema.Verdict.created_at.desc())
        .limit(NEWEST)
    )
    products = [
        (score or 0.0) * (detail[VOTED]["score"] or 0.0)
        for score, detail in tx.execute(verdicts)
        if detail.get(VOTED, {}).get("judge") == judge
    ]
    signs = [product for product in products if product]
    return Agreement(Share(sum(product < 0 for product in signs), len(signs)))
