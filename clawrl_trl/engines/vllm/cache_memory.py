"""Memory of a vLLM's KV cache, remembered for the engine's next start.

vLLM takes a share of the card when it starts, and refuses to start when less than that is free. A trainer beside it
takes memory meanwhile, so an engine that died would not come back. What the cache took at the first start is therefore
written to the run folder, and a later start with the same settings asks for these bytes, whatever is free.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from clawrl_trl.run import RunFolder, write_private

if TYPE_CHECKING:
    from clawrl_trl.engines.vllm.compat import ApiServer

MEMORY_PATH = "/v1/cache_memory"
"""Where a server of ours says what its cache takes."""

CARDS = Path("/proc/driver/nvidia/gpus")
"""Where Linux describes the cards; asking CUDA would take memory of them."""

CARD_LINES = ("Model:", "Bus Location:")
"""Beginnings of the lines there that tell one card from another."""

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class CacheMemory:
    """What the cache of an engine takes.

    Args:
        cache_bytes (`int`): Bytes of keys and values on each device.
        fit_memory (`bool`): Whether the context had to be cut to what the memory holds.
        setting (`str`): Digest of everything that the bytes depend on.
    """

    cache_bytes: int
    fit_memory: bool
    setting: str

    @classmethod
    def find(cls, folder: RunFolder, name: str, setting: str) -> "CacheMemory | None":
        """Read what an earlier start with the same settings has left; `None` if there is none.

        Args:
            folder (`RunFolder`): The run.
            name (`str`): The server's: `engine` or `judge_engine`.
            setting (`str`): See `digest_setting`.
        """
        try:
            content = json.loads(_path(folder, name).read_text())
            memory = cls(int(content["cache_bytes"]), bool(content["fit_memory"]), str(content["setting"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return memory if memory.setting == setting and memory.cache_bytes > 0 else None

    def save(self, folder: RunFolder, name: str) -> None:
        """Write it to the run folder."""
        write_private(_path(folder, name), json.dumps(asdict(self)) + "\n")


def _path(folder: RunFolder, name: str) -> Path:
    return folder.path / f"{name}_memory.json"


def digest_setting(*values: object) -> str:
    """Digest the settings of a server and the cards of this machine."""
    return hashlib.sha256(json.dumps([*values, _list_cards()], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _list_cards() -> list[str]:
    cards = []
    for path in CARDS.glob("*/information"):
        with suppress(OSError):
            # Other lines, such as the interrupt and the firmware, are filled in when a program opens the card.
            lines = (line for line in path.read_text().splitlines() if line.startswith(CARD_LINES))
            cards.append("\n".join(lines))
    return sorted(cards)


def ask_cache_bytes(base_url: str, key: str) -> int:
    """Ask a server of ours what its cache takes, in bytes; 0 if it doesn't say."""
    headers = {"authorization": f"Bearer {key}"}
    try:
        response = httpx.get(base_url + MEMORY_PATH, headers=headers, timeout=TIMEOUT_S, trust_env=False)
        return int(response.raise_for_status().json()["cache_bytes"])
    except (httpx.HTTPError, ValueError, KeyError):
        return 0


def make_memory_route(server: "ApiServer") -> Callable[[], Awaitable[dict[str, int]]]:
    """Make the route on which a server says what its cache takes."""

    async def describe() -> dict[str, int]:
        # Each worker has its part of the cache; the flag that asks for it is one for all.
        return {"cache_bytes": max(await server.call_workers("count_cache_bytes"), default=0)}

    return describe
