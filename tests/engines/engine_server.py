"""Starting the engine for tests, and ways to talk to it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

KEY = "test-engine-key"


@dataclass(frozen=True)
class Server:
    """Where an engine listens, and ways to talk to it."""

    base_url: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=self.key, max_retries=0, timeout=120)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, headers=self.headers, timeout=120)

    def async_http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base_url, headers=self.headers, timeout=120)


def start_engine(run: Path, **settings: Any) -> tuple[subprocess.Popen[bytes], Server]:
    """Start the engine in a subprocess; returns when it has announced itself."""
    ServeSettings(run=str(run), **settings).save()
    log = (run / "engine.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(run)],
        env={**os.environ, "CLAWRL_ENGINE_KEY": KEY, "OMP_NUM_THREADS": "1"},
        stderr=log,
    )
    while (announced := RunFolder(run).announced("engine")) is None:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError((run / "engine.log").read_text())
    return process, Server(announced["base_url"], announced["key"])
