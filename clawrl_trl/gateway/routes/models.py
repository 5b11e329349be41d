"""`GET /v1/models`: the names that always mean the newest serving policy, the base, and each kept version."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from clawrl_trl.gateway.service import Gateway
from clawrl_trl.messages import Json

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """Every model name that has a meaning of its own."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.chat_owner(dict(request.headers))
    context = await gateway.context()
    data = [_describe_model(gateway, name, context) for name in gateway.policies.names()]
    return JSONResponse({"object": "list", "data": data})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """One of them."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.chat_owner(dict(request.headers))
    gateway.policies.resolve(name)
    return JSONResponse(_describe_model(gateway, name, await gateway.context()))


def _describe_model(gateway: Gateway, name: str, context: int | None) -> Json:
    version = gateway.policies.resolve(name)
    return {
        "id": name,
        "object": "model",
        "created": int(gateway.started_at),
        "owned_by": "clawrl",
        "root": version.name,
        "parent": None if version.number == 0 else "base",
        "max_model_len": context,
        "policy_version": version.number,
    }
