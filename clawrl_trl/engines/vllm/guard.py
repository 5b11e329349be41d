"""Bearer authentication for every route of our own vLLM server.

vLLM asks for its key on `/v1` alone. Our server also has the routes for updating weights and calling into its
workers, and other users of the machine reach loopback too; so everything but `/health` asks for the key here.
vLLM's server loads this by name (`--middleware`). Nothing is imported but the standard library.
"""

import json
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

OPEN = frozenset({"/health"})

REFUSAL = {
    "error": {"message": "Invalid API key.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
}


class RequireKey:
    """ASGI middleware that answers 401 to whoever does not send `VLLM_API_KEY` as the bearer key.

    Args:
        app (ASGI application): The application it protects.

    Raises:
        KeyError: If the environment has no key; a server that no key protects must not start.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        # Lifespan messages come from the server itself, not from a client.
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(REFUSAL).encode()})

    def _has_key(self, scope: Message) -> bool:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(authorization, self._expected)
