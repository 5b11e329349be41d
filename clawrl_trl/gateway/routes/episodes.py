"""`POST /v1/episodes`: the outcomes of a group's rollouts, reported by the environment they took place in.

A rollout is a session whose requests carry `X-Group-Id`. Its turns wait until the whole group is reported here.
"""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.gateway.admission import admit_report
from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.ledger import episodes
from clawrl_trl.messages import Json

router = APIRouter()

Signal = Annotated[float, Field(ge=-1, le=1)]
Hints = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=episodes.MAX_HINT)]],
    Field(min_length=1, max_length=episodes.MAX_HINTS),
]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EpisodeReport(BaseModel):
    """One rollout; without an outcome it is dropped. `signals` and `hints` are those of its turns, by turn id."""

    # A misspelt field would leave a rollout without its reward, and nobody would see it.
    model_config = ConfigDict(extra="forbid", strict=True)

    session_id: Annotated[str, Field(min_length=1)]
    outcome: Signal | None = None
    reason: str = ""
    signals: dict[str, Signal] = {}
    hints: dict[str, Hints] = {}


class EpisodesRequest(BaseModel):
    """All rollouts of a group."""

    model_config = ConfigDict(extra="forbid", strict=True)

    group: Annotated[str, Field(min_length=1)]
    episodes: Annotated[list[EpisodeReport], Field(min_length=1, max_length=1024)]
    signal_weight: Weight = 0.0
    stepwise: bool = False


@router.post("/v1/episodes")
async def settle(request: Request) -> Response:
    """Give the turns of a group's rollouts their rewards."""
    gateway: Gateway = request.app.state.gateway
    report, owner = await admit_report(request, EpisodesRequest)
    outcomes = [
        episodes.EpisodeOutcome(episode.session_id, episode.outcome, episode.reason, episode.signals, episode.hints)
        for episode in report.episodes
    ]

    def write(tx: Transaction) -> Json:
        try:
            settled = episodes.settle(
                tx, report.group, outcomes, owner=owner, signal_weight=report.signal_weight, stepwise=report.stepwise
            )
        except KeyError as error:
            raise invalid(f"{error.args[0]}.", status=404, code="session_not_found") from None
        except ValueError as error:
            raise invalid(f"{error}.", param="episodes") from None
        return {"object": "episodes", "group": report.group, **vars(settled)}

    return JSONResponse(await gateway.write(write))
