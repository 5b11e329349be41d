"""How an engine process is started, so that the supervisor needs to know only one kind.

Every engine is one command that takes the run folder, listens on loopback, and announces itself in `engine.json`
when it answers. The embedded engine does that by itself; `python -m clawrl_trl.engines.launch` does it for a real
vLLM server, and takes the server down with itself. No torch here: the supervisor imports this.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from clawrl_trl.errors import UserError, run_main
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

MAX_LORA_RANK = 64
MAX_LOGPROBS = 128

VLLM_ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""What vLLM needs in its environment beside the key; a value the user has set is kept."""

PARSERS: dict[str, tuple[str | None, str | None]] = {
    "qwen2": ("hermes", None),
    "qwen2_moe": ("hermes", None),
    "qwen3": ("hermes", "qwen3"),
    "qwen3_moe": ("hermes", "qwen3"),
    "qwen3_next": ("hermes", "qwen3"),
    "qwen3_5": ("qwen3_coder", "qwen3"),
    "qwen3_5_moe": ("qwen3_coder", "qwen3"),
    "llama": ("llama3_json", None),
    "mistral": ("mistral", None),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1"),
    "glm4_moe": ("glm45", "glm45"),
    "gpt_oss": ("openai", "openai_gptoss"),
}
"""vLLM's tool-call and reasoning parsers by `model_type`."""


def engine_command(settings: ServeSettings) -> list[str]:
    """The command of the engine child. It takes the bearer key from `CLAWRL_ENGINE_KEY`, or makes one.

    Raises:
        UserError: If the engine isn't installed, `settings.engine` is the URL of one that runs elsewhere, or the
            model's folder doesn't exist.
    """
    model_path(settings)
    if settings.engine == "transformers":
        return [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", settings.run]
    if settings.engine == "vllm":
        _require_vllm()
        return [sys.executable, "-m", "clawrl_trl.engines.launch", "--run", settings.run]
    raise UserError(f"--engine {settings.engine} runs elsewhere: there is nothing to start.")


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vLLM is not installed: pip install 'clawrl-trl[vllm]', or use --engine transformers.")


def vllm_command(settings: ServeSettings, port: int) -> list[str]:
    """vLLM's own server for these settings, on a loopback port.

    Log-probabilities come back as processed, sampling defaults are neutral, and there is room for the adapters that
    the gateway keeps loaded, the newest, and one on its way in.
    """
    adapters = settings.keep_policies + 2
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model_path(settings), "--served-model-name", "base"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(settings.max_model_len), "--max-num-seqs", str(settings.max_running)]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", str(MAX_LOGPROBS)]
    command += ["--generation-config", "vllm"]
    command += ["--enable-lora", "--max-lora-rank", str(MAX_LORA_RANK)]
    command += ["--max-loras", str(adapters), "--max-cpu-loras", str(2 * adapters)]
    tool_parser, reasoning_parser = PARSERS.get(_model_type(settings), (None, None))
    if tool_parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", tool_parser]
    if reasoning_parser is not None:
        command += ["--reasoning-parser", reasoning_parser]
    return command + (["--enforce-eager"] if _on_cpu() else [])


def vllm_environment(key: str) -> dict[str, str]:
    """The environment of vLLM's server: this process's own, vLLM's switches, and the bearer key."""
    return VLLM_ENVIRONMENT | dict(os.environ) | {"VLLM_API_KEY": key}


def model_path(settings: ServeSettings) -> str:
    """Folder or hub id of the base model; the bundled one by default.

    Raises:
        UserError: If it is the path of a folder that doesn't exist.
    """
    path = settings.model_name_or_path
    if path is not None:
        if path.startswith(("/", "./", "../", "~")) and not Path(path).expanduser().is_dir():
            raise UserError(f"{path} is no folder: give --model_name_or_path the folder or the id of a causal model.")
        return str(Path(path).expanduser()) if path.startswith("~") else path
    from clawrl_trl.tiny import MODEL_PATH

    return str(MODEL_PATH)


def _model_type(settings: ServeSettings) -> str:
    config = Path(model_path(settings)) / "config.json"
    if config.is_file():
        return str(json.loads(config.read_text()).get("model_type", ""))
    return "qwen3" if "qwen3" in model_path(settings).lower() else ""


def _on_cpu() -> bool:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def serve_vllm(run: str) -> int:
    """Start vLLM for a run folder, announce it when it is healthy, wait for it; returns its exit status.

    Raises:
        UserError: If vLLM is not installed or the run folder has no settings.
    """
    _require_vllm()
    settings = ServeSettings.load(run)
    key = os.environ.get("CLAWRL_ENGINE_KEY") or secrets.token_urlsafe(32)
    port = _free_port()
    preparation = _die_with_parent if sys.platform == "linux" else None
    server = subprocess.Popen(vllm_command(settings, port), env=vllm_environment(key), preexec_fn=preparation)
    base_url = f"http://127.0.0.1:{port}"
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while server.poll() is None and not _healthy(base_url):
        with suppress(subprocess.TimeoutExpired):
            server.wait(0.5)
    if server.poll() is None:
        RunFolder(run).announce("engine", base_url, key=key)
    return server.wait()


def _healthy(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """`python -m clawrl_trl.engines.launch --run DIR`: vLLM as the engine of a run folder."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.engines.launch", description=serve_vllm.__doc__)
    parser.add_argument("--run", required=True, help="run folder with a config.json")
    run = parser.parse_args(arguments).run
    return run_main(lambda: serve_vllm(run))


if __name__ == "__main__":
    sys.exit(main())
