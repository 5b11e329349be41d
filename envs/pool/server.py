"""The pool over HTTP: `clawrl env-server` lends environments to rollouts on other machines.

Routes: `GET /specs`, `GET /status`, `POST /allocate`, `/heartbeat`, `/reset`, `/step`, `/evaluate`, `/close`. A bearer
key (`CLAWRL_ENV_KEY`) guards them; without one only this machine is served. Calls into environments run on threads, so
one that takes its time keeps nobody else waiting.
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

from clawrl_trl.envs.pool.pool import EnvPool, NoSuchLease, OutOfTurn, PoolFull, TooSlow
from clawrl_trl.envs.pool.wire import Json
from clawrl_trl.gateway import errors
from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.gateway.middleware import GatewayMiddleware

logger = logging.getLogger(__name__)

router = APIRouter()

LONGEST_ACTION = 2**20
SPARE_THREADS = 8
"""Threads for calls that wait for no environment, beside one for each that may."""

_STATUS: dict[type[Exception], tuple[int, str]] = {
    NoSuchLease: (404, "lease_not_found"),
    PoolFull: (503, "pool_full"),
    OutOfTurn: (409, "out_of_turn"),
    TooSlow: (504, "too_slow"),
}


class Leased(BaseModel):
    """A call on a lent environment."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lease: str


class Reset(Leased):
    """Begin an episode."""

    task: Annotated[int, Field(ge=0)] | None = None


class StepRequest(Leased):
    """Carry out an action; counted, so that a repetition is known."""

    number: Annotated[int, Field(ge=1)]
    action: Annotated[str, Field(max_length=LONGEST_ACTION)]


@router.get("/healthz")
async def healthz() -> Json:
    return {"status": "ok"}


@router.get("/specs")
async def specs(request: Request) -> JSONResponse:
    return await _called(request, lambda pool: {"observation": pool.specs()})


@router.get("/status")
async def status(request: Request) -> JSONResponse:
    return await _called(request, lambda pool: pool.status())


@router.post("/allocate")
async def allocate(request: Request) -> JSONResponse:
    return await _called(request, lambda pool: {"lease": pool.allocate(), "idle_s": pool.idle_s})


@router.post("/heartbeat")
async def heartbeat(request: Request, given: Leased) -> JSONResponse:
    return await _called(request, lambda pool: pool.heartbeat(given.lease))


@router.post("/reset")
async def reset(request: Request, given: Reset) -> JSONResponse:
    return await _called(request, lambda pool: {"state": pool.reset(given.lease, given.task)})


@router.post("/step")
async def step(request: Request, given: StepRequest) -> JSONResponse:
    return await _called(request, lambda pool: {"state": pool.step(given.lease, given.number, given.action)})


@router.post("/evaluate")
async def evaluate(request: Request, given: Leased) -> JSONResponse:
    return await _called(request, lambda pool: {"state": pool.evaluate(given.lease)})


@router.post("/close")
async def close(request: Request, given: Leased) -> JSONResponse:
    return await _called(request, lambda pool: pool.close(given.lease))


async def _called(request: Request, work: Callable[[EnvPool], Json | None]) -> JSONResponse:
    request.app.state.keys.chat_owner(dict(request.headers))
    try:
        state = request.app.state
        done = await asyncio.get_running_loop().run_in_executor(state.threads, work, state.pool)
    except tuple(_STATUS) as error:
        code, name = _STATUS[type(error)]
        headers = {"Retry-After": "1"} if code == 503 else {}
        raise ApiError(code, f"{error}.", code=name, headers=headers) from None
    return JSONResponse(done or {"ok": True})


def make_app(pool: EnvPool, keys: Keys, host: str = "127.0.0.1") -> FastAPI:
    """The app of a pool, which it takes down with itself.

    Args:
        pool ([`EnvPool`]): What is lent.
        keys ([`Keys`]): Its chat keys open all routes.
        host (`str`, *optional*, defaults to `"127.0.0.1"`): The address it is bound to.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        expiring = asyncio.create_task(_expire(pool))
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
    app.state.threads = ThreadPoolExecutor(pool.size + SPARE_THREADS, thread_name_prefix="call")
    errors.install(app)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.include_router(router)
    return app  # type: ignore[no-any-return]


async def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return invalid(f"{where or 'body'}: {first['msg']}.", param=where or None).response(anthropic=False)


async def _expire(pool: EnvPool) -> None:
    while True:
        await asyncio.sleep(min(5.0, pool.idle_s / 4))
        try:
            await asyncio.to_thread(pool.expire)
        except Exception:  # a next attempt may succeed; without one, nothing would ever expire
            logger.exception("expiring leases failed")
