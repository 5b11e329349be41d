"""Health of the gateway: `GET /healthz`, `GET /readyz`, and `GET /v1/admin/status` for the administrator."""

import asyncio
import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl import __version__
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.ledger import policies, samples, turns
from clawrl_trl.ledger.errors import LedgerWriteError
from clawrl_trl.ledger.schema import Session
from clawrl_trl.messages import Json

router = APIRouter()


@router.get("/")
async def root() -> Response:
    """Say what listens here to a person who opens the address; nothing about the run."""
    return JSONResponse(
        {
            "name": "clawrl-trl gateway",
            "version": __version__,
            "about": "OpenAI-compatible API of a model that learns from its chats: point a client's base URL at /v1.",
            "routes": {
                "chat": "/v1/chat/completions",
                "completions": "/v1/completions",
                "responses": "/v1/responses",
                "messages": "/v1/messages",
                "models": "/v1/models",
                "feedback": "/v1/feedback",
                "health": "/healthz",
                "readiness": "/readyz",
            },
        }
    )


@router.get("/healthz")
async def healthz() -> Response:
    """The process is alive."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """A request would be served: the ledger takes writes and the engine answers."""
    gateway: Gateway = request.app.state.gateway
    reasons = []
    try:
        # A reader would not notice a full disk or a ledger that somebody else keeps locked.
        await gateway.writer.run(_take_write_lock)
    except LedgerWriteError as error:
        reasons.append(str(error))
    else:
        reasons.extend(gateway.recent_ledger_fault())
    if gateway.policies.fault:
        reasons.append(gateway.policies.fault)
    if not await gateway.engine.health():
        reasons.append("The engine can't be reached.")
    if reasons:
        return JSONResponse({"status": "not ready", "reasons": reasons}, 503)
    return JSONResponse({"status": "ready", "policy_version": gateway.policies.serving.number})


@router.get("/v1/admin/status")
async def status(request: Request) -> Response:
    """Return the gateway's state for an administrator."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.check_admin(dict(request.headers), request.client.host if request.client else None)
    # Counting reads whole tables; on the event loop chats would wait for it.
    counts = await asyncio.to_thread(_count_rows, gateway)
    return JSONResponse(
        {
            "uptime_s": round(time.time() - gateway.started_at, 3),
            "in_flight": gateway.in_flight,
            "serving": gateway.policies.serving.number,
            "leases": {str(version): count for version, count in gateway.policies.leases.items()},
            "ledger_faults": gateway.recent_ledger_fault(),
            "engine_healthy": await gateway.engine.health(),
            **counts,
        }
    )


def _take_write_lock(tx: Transaction) -> None:
    """Take the write lock, and write nothing."""
    tx.connection()


def _count_rows(gateway: Gateway) -> Json:
    with gateway.ledger.reader() as tx:
        return {
            "sessions": tx.scalar(select(func.count()).select_from(Session)),
            "turns": turns.counts(tx),
            "samples": samples.counts(tx),
            "policies": [
                {"version": row.version, "state": row.state, "kind": row.kind, "parent": row.parent}
                for row in policies.all(tx)
            ],
        }
