"""The gateway as an ASGI app.

Routes only translate between HTTP and the parts; the parts are made by whoever starts the app and handed in as
one `Gateway`, so that a test builds the same app as the process does. Importing this loads no torch.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from clawrl_trl import __version__
from clawrl_trl.gateway import errors
from clawrl_trl.gateway.middleware import GatewayMiddleware
from clawrl_trl.gateway.routes import anthropic, chat, episodes, feedback, forward, health, models, responses
from clawrl_trl.gateway.service import Gateway


def make_app(gateway: Gateway) -> FastAPI:
    """The app of a gateway, which it starts and stops with itself."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    origins = gateway.settings.origins
    cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app = FastAPI(
        title="clawrl-trl gateway",
        version=__version__,
        lifespan=lifespan,
        # FastAPI's own pages would be served without a key, and load scripts of another domain.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would lose the `/s/<session>` that the middleware has cut off the path.
        redirect_slashes=False,
        middleware=[
            Middleware(GatewayMiddleware, keys=gateway.keys, host=gateway.settings.host, origins=origins),
            *([cors] if origins else []),
        ],
    )
    app.state.gateway = gateway
    errors.install(app)
    # The forwarding route takes every path below `/v1`, so it comes last: the first route that fits wins.
    for part in (chat, responses, anthropic, models, feedback, episodes, health, forward):
        app.include_router(part.router)
    return app
