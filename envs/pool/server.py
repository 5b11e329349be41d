"""The pool over HTTP: `clawrl env-server` lends environments to rollouts on other machines.

Routes: `GET /specs`, `GET /status`, `POST /allocate`, `/heartbeat`, `/reset`, `/step`, `/evaluate`, `/close`. A bearer
key (`CLAWRL_ENV_KEY`) guards them; without one only this machine is served. Calls into environments run on threads, so
that a slow one keeps no other request waiting.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware import Middleware

from clawrl_trl.envs.pool.pool import EnvironmentBusy, EnvPool, NoSuchLease, PoolFull, StepOutOfOrder
from clawrl_trl.gateway import errors
from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.gateway.middleware import GatewayMiddleware
from clawrl_trl.messages import Json

logger = logging.getLogger(__name__)

router = APIRouter()

LONGEST_ACTION = 2**20
SPARE_THREADS = 8
"""Threads for calls that wait for no environment, besides one for each environment."""

_STATUS: dict[type[Exception], tuple[int, str]] = {
    NoSuchLease: (404, "lease_not_found"),
    PoolFull: (503, "pool_full"),
    StepOutOfOrder: (409, "out_of_turn"),
    EnvironmentBusy: (504, "too_slow"),
}


class LeaseRequest(BaseModel):
    """Body of a call on a lent environment."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lease: str


class ResetRequest(LeaseRequest):
    """Body of `/reset`: begin an episode, of the task at a position or of the next one."""

    task: Annotated[int, Field(ge=0)] | None = None


class StepRequest(LeaseRequest):
    """Body of `/step`: carry out an action, numbered so that a repetition is known."""

    number: Annotated[int, Field(ge=1)]
    action: Annotated[str, Field(max_length=LONGEST_ACTION)]


@router.get("/healthz")
async def answer_health() -> Json:
    return {"status": "ok"}


@router.get("/specs")
async def get_specs(request: Request) -> JSONResponse:
    return await _call_pool(request, lambda pool: {"observation": pool.get_specs()})


@router.get("/status")
async def get_status(request: Request) -> JSONResponse:
    return await _call_pool(request, lambda pool: pool.get_status())


@router.post("/allocate")
async def allocate(request: Request) -> JSONResponse:
    return await _call_pool(request, lambda pool: {"lease": pool.allocate(), "idle_s": pool.idle_s})


@router.post("/heartbeat")
async def heartbeat(request: Request, body: LeaseRequest) -> JSONResponse:
    return await _call_pool(request, lambda pool: pool.heartbeat(body.lease))


@router.post("/reset")
async def reset(request: Request, body: ResetRequest) -> JSONResponse:
    return await _call_pool(request, lambda pool: {"state": pool.reset(body.lease, body.task)})


@router.post("/step")
async def step(request: Request, body: StepRequest) -> JSONResponse:
    return await _call_pool(request, lambda pool: {"state": pool.step(body.lease, body.number, body.action)})


@router.post("/evaluate")
async def evaluate(request: Request, body: LeaseRequest) -> JSONResponse:
    return await _call_pool(request, lambda pool: {"state": pool.evaluate(body.lease)})


@router.post("/close")
async def close(request: Request, body: LeaseRequest) -> JSONResponse:
    return await _call_pool(request, lambda pool: pool.close(body.lease))


async def _call_pool(request: Request, work: Callable[[EnvPool], Json | None]) -> JSONResponse:
    request.app.state.keys.chat_owner(dict(request.headers))
    try:
        state = request.app.state
        answer = await asyncio.get_running_loop().run_in_executor(state.threads, work, state.pool)
    except tuple(_STATUS) as error:
        code, name = _STATUS[type(error)]
        headers = {"Retry-After": "1"} if code == 503 else {}
        raise ApiError(code, f"{error}.", code=name, headers=headers) from None
    return JSONResponse(answer or {"ok": True})


def make_app(pool: EnvPool, keys: Keys, host: str = "127.0.0.1") -> FastAPI:
    """Make the app that lends a pool, and takes it down at its end.

    Args:
        pool ([`EnvPool`]): The environments.
        keys ([`Keys`]): Its chat keys open all routes.
        host (`str`, *optional*, defaults to `"127.0.0.1"`): The address it is bound to.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        expiring = asyncio.create_task(_expire_leases(pool))
        try:
            yield
        finally:
            expiring.cancel()
            await asyncio.gather(expiring, return_exceptions=True)
            await asyncio.to_thread(pool.shutdown)
            app.state.threads.shutdown(wait=False)

    app: Any = FastAPI(
        title="clawrl-trl environments",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[Middleware(GatewayMiddleware, keys=keys, host=host)],
    )
    app.state.pool, app.state.keys = pool, keys
    # Threads of its own: asyncio's default pool has few, and environments that wait would take them all.
    app.state.threads = ThreadPoolExecutor(pool.size + SPARE_THREADS, thread_name_prefix="call")
    errors.install(app)
    app.add_exception_handler(RequestValidationError, _answer_unreadable)
    app.include_router(router)
    return app  # type: ignore[no-any-return]


async def _answer_unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return invalid(f"{where or 'body'}: {first['msg']}.", param=where or None).response(anthropic=False)


async def _expire_leases(pool: EnvPool) -> None:
    while True:
        await asyncio.sleep(min(5.0, pool.idle_s / 4))
        try:
            await asyncio.to_thread(pool.expire)
        except Exception:  # a next attempt may succeed; without one, nothing would ever expire
            logger.exception("expiring leases failed")
