"""Agreement of the owner's thumbs with the base model's votes on the same turns.

An exam is short and its questions are not the owner's. A turn with thumbs and words is therefore voted on too, without
the thumbs being shown; the votes decide nothing there and stand in the verdict's detail beside what the thumbs said.
Thumbs that come once a turn is trained on are compared with the votes that decided it. Where the two disagree too
often the model's votes on words are not used, until they agree again.
"""

from dataclasses import dataclass

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.judge.evaluation.summary import Share
from clawrl_trl.judge.turn import JudgedTurn
from clawrl_trl.ledger import schema

VOTED = "voted"
"""Key of a verdict's detail: the score of the votes on a turn that thumbs decided."""
EXAM_KEY = "exam_key"
"""Key of a verdict's detail, and of `voted`: the exam of the model and prompt that voted."""
NEWEST = 200
"""Thumbs beside votes that are looked at, newest first."""
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


def read_agreement(tx: Transaction, key: str) -> Agreement:
    """Read the agreement over the newest thumbs on turns that were voted on.

    Args:
        tx: The open transaction.
        key: The exam's key: votes of another model, or under another prompt, say nothing of this one.
    """
    detail, thumbs = schema.Verdict.detail, schema.Feedback
    decided = and_(detail[EXAM_KEY].as_string() == key, schema.Verdict.score != 0)
    beside = and_(detail[(VOTED, EXAM_KEY)].as_string() == key, detail[(VOTED, "score")].as_float() != 0)
    compared = (
        select(thumbs.turn_id, thumbs.value, schema.Verdict.score, detail)
        .join(schema.Verdict, schema.Verdict.turn_id == thumbs.turn_id)
        .where(thumbs.kind == "thumbs", thumbs.value.is_not(None), or_(decided, beside))
        .order_by(thumbs.created_at.desc(), thumbs.id.desc())
        .limit(NEWEST)
    )
    products: dict[str, float] = {}
    for turn_id, value, score, facts in tx.execute(compared):
        # The newest thumbs of a turn count.
        votes = facts[VOTED]["score"] if VOTED in facts else score
        products.setdefault(turn_id, (value or 0.0) * (votes or 0.0))
    signs = [product for product in products.values() if product]
    return Agreement(Share(sum(product < 0 for product in signs), len(signs)))
