"""`GET /v1/models`: the alias that always means the newest serving policy, the base, and each kept version."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from clawrl_trl.gateway.service import Gateway

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """Every model name that can be asked for."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.chat_owner(dict(request.headers))
    return JSONResponse({"object": "list", "data": [_described(gateway, name) for name in gateway.policies.names()]})


@router.get("/v1/models/{name}")
async def model(request: Request, name: str) -> Response:
    """One of them."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.chat_owner(dict(request.headers))
    gateway.policies.resolve(name)
    return JSONResponse(_described(gateway, name))


def _described(gateway: Gateway, name: str) -> dict[str, Any]:
    version = gateway.policies.resolve(name)
    return {
        "id": name,
        "object": "model",
        "created": int(gateway.started_at),
        "owned_by": "clawrl",
        "root": version.name,
        "parent": None if version.number == 0 else "base",
        "max_model_len": gateway.settings.max_model_len,
        "policy_version": version.number,
    }
