"""Starting an engine for tests, and ways to talk to it."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.run import RunFolder

KEY = "test-engine-key"

EMBEDDED = "clawrl_trl.engines.embedded"
VLLM = "clawrl_trl.engines.launch"


@dataclass(frozen=True)
class Server:
    """Where an engine listens, which one it is, and ways to talk to it."""

    base_url: str
    key: str
    is_vllm: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=self.key, max_retries=0, timeout=120)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, headers=self.headers, timeout=120)

    def async_http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base_url, headers=self.headers, timeout=120)


def start_engine(run: Path, module: str = EMBEDDED, **settings: Any) -> tuple[subprocess.Popen[bytes], Server]:
    """Start an engine in a subprocess; returns when it has announced itself.

    Args:
        run (`Path`): Its run folder.
        module (`str`, defaults to the embedded engine): What `python -m` runs.
        **settings: The run's settings.
    """
    engine = "vllm" if module == VLLM else "transformers"
    ServeSettings(run=str(run), engine=engine, **settings).save()
    with (run / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--run", str(run)],
            env={**os.environ, "CLAWRL_ENGINE_KEY": KEY, "OMP_NUM_THREADS": "1"},
            stderr=log,
        )
    while (announced := RunFolder(run).read_announced("engine")) is None:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError((run / "engine.log").read_text())
    return process, Server(announced["base_url"], announced["key"], module == VLLM)


def stop_engine(process: subprocess.Popen[bytes]) -> None:
    """End an engine as the supervisor does; its status is that of a clean end or of the signal."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, -signal.SIGTERM)
