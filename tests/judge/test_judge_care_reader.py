"""A correction that asks for less care than the reply took makes no hint, and its score counts."""

import json
from pathlib import Path

import pytest
from judge_helpers import judged_turn

from clawrl_trl.judge.classifier.care_reader import asks_for_less_care
from clawrl_trl.judge.classifier.encoders import MINILM, MPNET
from clawrl_trl.judge.hints.fitness import drop_unfit_hints
from clawrl_trl.judge.turn import Judgement

CAREFUL = (
    "Brownies: wheat, egg, milk. Lemon bars: wheat, egg, and they may contain hazelnut, so the twins should skip them."
)
UNSEEN = Path(__file__).parents[1] / "data" / "judging" / "care_unseen.jsonl"
POEM = "Brownies brown and lemon bars so bright, we eat them up before the end of night."
LESS = "The first half is all people want, leave the rest off."
FORM = "In French, please, and as a table."


@pytest.mark.parametrize("encoder", [MINILM, pytest.param(MPNET, marks=pytest.mark.large_encoder)])
@pytest.mark.parametrize(
    ("reply", "said", "asks"), [(CAREFUL, LESS, True), (CAREFUL, FORM, False), (POEM, FORM, False)]
)
def test_reply_and_correction_together_tell(reply: str, said: str, asks: bool, encoder: str) -> None:
    assert asks_for_less_care("Write the card for the bake sale", reply, said, encoder) == asks


@pytest.mark.slow
def test_strangers_corrections_are_known_as_often_as_measured() -> None:
    rows = [json.loads(line) for line in UNSEEN.read_text(encoding="utf-8").splitlines()]
    found = [asks_for_less_care(row["request"], row["reply"], row["message"], MINILM) for row in rows]
    known = [answer for answer, row in zip(found, rows, strict=True) if row["undoes"]]
    others = [answer for answer, row in zip(found, rows, strict=True) if not row["undoes"]]
    assert (len(known), len(others)) == (110, 130)
    assert sum(known) >= 0.77 * len(known) and sum(others) <= 0.18 * len(others)


@pytest.mark.parametrize(("said", "hints"), [(LESS, ()), (FORM, ("a hint",))])
def test_only_the_hints_are_dropped(said: str, hints: tuple[str, ...]) -> None:
    turn = judged_turn(said, request="Write the card for the bake sale", reply=CAREFUL)
    judgement = drop_unfit_hints(turn, Judgement("rules", -1, ("a hint",), "owner message"))
    assert (judgement.score, judgement.hints) == (-1, hints)
    assert (judgement.detail.get("no hint") == "asks for less care") == (hints == ())
