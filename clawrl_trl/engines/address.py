"""Addresses of engines and the arguments of HTTP requests to them, shared by both clients."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.calls import EngineCall, encode
from clawrl_trl.engines.errors import EngineUnavailable
from clawrl_trl.run import RunFolder

CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Shorter than servers keep idle connections (uvicorn: 5 s), so that none is closed under a request."""


@dataclass(frozen=True)
class EngineAddress:
    """Base URL of an engine (without `/v1`) and the bearer key it asks for."""

    base_url: str
    key: str | None = None
    pid: int | None = None

    @classmethod
    def of(cls, base_url: str, key: str | None = None, pid: int | None = None) -> "EngineAddress":
        """Make an address from a URL as people write it, with or without `/v1` at its end."""
        return cls(base_url.rstrip("/").removesuffix("/v1"), key, pid)


def locate(run: RunFolder, settings: ServeSettings) -> EngineAddress:
    """Return the address at which the engine of a run listens at this moment.

    A remote engine is found by `settings.engine` and `CLAWRL_ENGINE_KEY`, one started for the run by
    its readiness file, which changes when the engine is restarted on another port.

    Raises:
        EngineUnavailable: If the run's engine has not announced itself or its process is gone.
    """
    if settings.is_remote:
        return EngineAddress.of(settings.engine, os.environ.get("CLAWRL_ENGINE_KEY"))
    announced = run.read_announced("engine")
    if announced is None:
        raise EngineUnavailable("the engine is not running (yet)")
    return EngineAddress.of(announced["base_url"], announced.get("key"), announced["pid"])


class EngineClientBase:
    """Base of both clients: where the engine is, and what a request to it carries."""

    def __init__(
        self,
        base_url: str | Callable[[], EngineAddress],
        key: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        address = EngineAddress.of(base_url, key) if isinstance(base_url, str) else None
        self._locate: Callable[[], EngineAddress] = (lambda: address) if address else base_url  # type: ignore[assignment]
        # An engine that is gone is noticed in seconds, while a reply may take minutes.
        self.timeout = httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT_S, timeout))
        # The newest address whose engine is known to have no route for packed scores.
        self._plain: EngineAddress | None = None

    @classmethod
    def of_run(cls, run: RunFolder, settings: ServeSettings, timeout: float | None = None) -> Self:
        """A client that finds the run's engine anew for every call, so it survives the engine's restart."""
        return cls(lambda: locate(run, settings), timeout=settings.engine_timeout if timeout is None else timeout)

    @property
    def address(self) -> EngineAddress:
        """The address at which the engine listens now.

        Raises:
            EngineUnavailable: If it has not announced itself.
        """
        return self._locate()

    def build_arguments(self, call: EngineCall, timeout: float | None) -> dict[str, Any]:
        """Build httpx's arguments for a call."""
        address = self.address
        headers = {"authorization": f"Bearer {address.key}"} if address.key else {}
        arguments: dict[str, Any] = {
            "method": call.method,
            "url": address.base_url + call.path,
            "headers": headers,
        }
        if call.body is not None:
            arguments["content"] = encode(call.body)
            headers["content-type"] = "application/json"
        arguments["timeout"] = self.timeout if timeout is None else httpx.Timeout(timeout)
        return arguments
