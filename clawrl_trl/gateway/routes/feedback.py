"""`POST /v1/feedback`: a rating, a text, a correction or an outcome for one reply."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.gateway.admission import admit_report
from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.ledger import schema, turns
from clawrl_trl.messages import Json

router = APIRouter()

_THUMBS = {"up": 1.0, "down": -1.0}


def _refuse_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be -1 or 1, not true or false")  # in Python, true is 1
    return value


NotTrue = BeforeValidator(_refuse_truth_value)


class FeedbackRequest(BaseModel):
    """A rating, a free text, a correction or an outcome; at least one of them, on one reply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turn_id: str | None = None
    completion_id: str | None = None
    id: str | None = None
    choice_index: Annotated[int, Field(ge=0, lt=2**31)] = 0
    score: Annotated[Literal[-1, 1] | None, NotTrue] = None
    thumbs: Annotated[Literal["up", "down", -1, 1] | None, NotTrue] = None
    text: Annotated[str, Field(min_length=1)] | None = None
    correction: Annotated[str, Field(min_length=1)] | None = None
    outcome: Annotated[float, Field(ge=-1, le=1)] | None = None


@router.post("/v1/feedback")
async def feedback(request: Request) -> Response:
    """Store feedback on a turn; a main turn then goes to the judge."""
    gateway: Gateway = request.app.state.gateway
    rating, owner = await admit_report(request, FeedbackRequest)
    names = [name for name in (rating.turn_id, rating.completion_id, rating.id) if name is not None]
    if len(names) != 1:
        raise invalid("Name the reply by one of turn_id, completion_id or id.", param="turn_id")
    parts = _feedback_rows(rating)
    if not parts:
        raise invalid("Say something: score (-1 or 1), thumbs, text, correction or outcome.", param="score")

    def write(tx: Transaction) -> Json:
        turn = turns.get(tx, names[0]) or turns.by_completion(tx, names[0], rating.choice_index)
        session = tx.get(schema.Session, turn.session_id) if turn else None
        # The same answer for no reply and another owner's: an id can't be tried out.
        if turn is None or session is None or owner not in (None, session.owner):
            raise invalid(f"There is no reply {names[0]!r}.", status=404, code="turn_not_found")
        rows = [schema.Feedback(turn_id=turn.id, who=owner or "feedback-key", **part) for part in parts]
        for row in rows:
            turns.add_feedback(tx, row)
        ids = [row.id for row in rows]
        return {"object": "feedback", "id": ids[0], "feedback_ids": ids, "turn_id": turn.id, "state": turn.state}

    return JSONResponse(await gateway.write(write))


def _feedback_rows(rating: FeedbackRequest) -> list[Json]:
    thumbs = rating.score if rating.score is not None else rating.thumbs
    parts: list[Json] = []
    if thumbs is not None:
        parts.append({"kind": "thumbs", "value": _THUMBS[thumbs] if isinstance(thumbs, str) else float(thumbs)})
    if rating.text is not None:
        parts.append({"kind": "text", "text": rating.text})
    if rating.correction is not None:
        parts.append({"kind": "correction", "text": rating.correction})
    if rating.outcome is not None:
        parts.append({"kind": "outcome", "value": rating.outcome})
    return parts
