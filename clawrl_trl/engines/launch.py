"""Start of an engine process, embedded or vLLM, so that the supervisor needs to know only one kind.

Every engine is one command that takes the run folder, listens on loopback, and announces itself in `engine.json`
when it answers. The embedded engine does that by itself; `python -m clawrl_trl.engines.launch` does it for a real
vLLM server. The server's output goes to `logs/vllm.log` of the run; what it is doing while it starts, and in the
end why it failed, is printed here in one line each, which the supervisor keeps in `logs/engine.log`. When the server
ends, so does this process, with everything the server has started: starting again is the supervisor's business. No
torch here: the supervisor imports this.
"""

import argparse
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.hub_access import require_model
from clawrl_trl.engines.vllm.cache_memory import CacheMemory, ask_cache_bytes
from clawrl_trl.engines.vllm.server import Server
from clawrl_trl.engines.vllm.server_log import ServerLog
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.process import StopRequest, end_with_parent
from clawrl_trl.run import RunFolder, open_private

JUDGE_KEY = "CLAWRL_JUDGE_KEY"
"""Environment variable with the bearer key of the judge's server."""

START_TIMEOUT_S = 1800.0
"""Longest wait for a server to answer: it may have a large model to fetch."""
POLL_S = 0.5
STOP_TIMEOUT_S = 12.0
"""How long a server that is told to end may take; shorter than the supervisor's patience with this process."""


def engine_command(settings: ServeSettings, *, judge: bool = False) -> list[str]:
    """The command of the engine child. It takes the bearer key from the environment, or makes one.

    Args:
        settings (`ServeSettings`): The run's settings.
        judge (`bool`, *optional*, defaults to `False`): The judge's own server in place of the run's engine.

    Raises:
        UserError: If the engine isn't installed, `settings.engine` is the URL of one that runs elsewhere, or the
            model's folder doesn't exist, or the Hub that has the model can't be reached.
    """
    require_model(model_path(settings))
    if settings.engine == "transformers" and not judge:
        return [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", settings.run]
    if settings.engine == "vllm" or judge:
        _require_vllm()
        words = [sys.executable, "-m", "clawrl_trl.engines.launch", "--run", settings.run]
        return [*words, "--judge"] if judge else words
    raise UserError(f"--engine {settings.engine} runs elsewhere: there is nothing to start.")


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "vLLM is not installed: pip install 'clawrl-trl[vllm]' (without a GPU see docs/settings.md), "
            "or use --engine transformers."
        )


def model_path(settings: ServeSettings) -> str:
    """Folder or hub id of the base model; the bundled one by default.

    Raises:
        UserError: If it is the path of a folder that doesn't exist.
    """
    path = settings.model_name_or_path
    if path is not None:
        # What looks like a path is one: taken for a hub id, a typing error would end in a puzzling 404.
        if path.startswith(("/", "./", "../", "~")) and not Path(path).expanduser().is_dir():
            raise UserError(f"{path} is no folder: give --model_name_or_path the folder or the id of a causal model.")
        return str(Path(path).expanduser()) if path.startswith("~") else path
    from clawrl_trl.tiny import MODEL_PATH

    return str(MODEL_PATH)


def serve(run: str, *, judge: bool = False) -> int:
    """Run vLLM for a run folder, announced once it is healthy, until it ends or SIGTERM comes; its exit status.

    Raises:
        UserError: If vLLM is not installed or the run folder has no settings.
    """
    _require_vllm()
    settings = ServeSettings.load(run)
    make, name, variable = Server.of_run, "engine", "CLAWRL_ENGINE_KEY"
    if judge:
        make, name, variable = Server.of_judge, "judge_engine", JUDGE_KEY
    server = make(settings, model_path(settings))
    # Random where none is set: other users of the machine reach loopback too.
    key = os.environ.get(variable) or secrets.token_urlsafe(32)
    port = httpx.URL(settings.judge_url).port if judge and settings.judge_url else None
    folder = RunFolder(run).make()
    memory = CacheMemory.find(folder, name, server.setting)
    if memory is not None:
        server = replace(server, cache_bytes=memory.cache_bytes, fit_memory=memory.fit_memory)
    return _run_server(server, folder, name, key, port or free_port())


def _run_server(server: Server, folder: RunFolder, name: str, key: str, port: int) -> int:
    log = ServerLog(folder.logs / ("vllm.log" if name == "engine" else "vllm-judge.log"))
    with _start_process(server, log, key, port) as process:
        end_requested = _end_on_signals(process)
        base_url = f"http://127.0.0.1:{port}"
        if _wait_healthy(process, base_url, log):
            if server.cache_bytes is None:
                _remember_memory(server, folder, name, base_url, key)
            folder.announce(name, base_url, key=key)
        while process.poll() is None and not end_requested.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        if end_requested.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            return 0
    # Once, and only for a length that nobody asked for: what a user states is not cut short silently.
    if server.settings.max_model_len is None and not server.fit_memory and log.has_cache_too_small():
        _report("the memory can't hold the default context: vLLM is started again with the longest that it holds")
        return _run_server(replace(server, fit_memory=True), folder, name, key, port)
    # A server that a signal has killed could not log why: the newest error in its log is another one's.
    code, cause = process.returncode, log.find_cause()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    _report(f"error: vLLM {how}{': ' + cause if cause and code >= 0 else ''} (more in {log.path})")
    return 1


def _remember_memory(server: Server, folder: RunFolder, name: str, base_url: str, key: str) -> None:
    """Write down what the server's cache takes, before a trainer begins to take the rest."""
    cache_bytes = ask_cache_bytes(base_url, key)
    if cache_bytes:
        CacheMemory(cache_bytes, server.fit_memory, server.setting).save(folder, name)
        _report(f"the KV cache takes {cache_bytes / 2**30:.2f} GiB on each device, now and after a restart")


def _end_on_signals(process: subprocess.Popen[bytes]) -> StopRequest:
    end_requested = StopRequest()

    def end(*_: object) -> None:
        end_requested.set()
        process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return end_requested


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _start_process(server: Server, log: ServerLog, key: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server's process; at the end nothing that it has started is left."""
    with open_private(log.path, "ab") as sink:
        process = subprocess.Popen(
            server.command(port),
            env=server.environment(key),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            process_group=0,  # vLLM starts processes of its own: all are ended by their group
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_healthy(process: subprocess.Popen[bytes], base_url: str, log: ServerLog) -> bool:
    """Return whether the server came up; says meanwhile what it is doing."""
    started = time.monotonic()
    reported = ""
    while process.poll() is None and not _is_healthy(base_url):
        waited = time.monotonic() - started
        if waited > START_TIMEOUT_S:
            _report(f"vLLM has not answered for {waited:.0f} s and is stopped")
            process.terminate()
        doing = log.newest_activity()
        if doing and doing != reported:
            _report(f"vLLM after {waited:.0f} s: {doing}")
            reported = doing
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    if process.poll() is not None:
        return False
    _report(f"vLLM answers after {time.monotonic() - started:.0f} s")
    return True


def _is_healthy(base_url: str) -> bool:
    try:
        # Without the environment's proxies, which would be asked for loopback.
        return httpx.get(f"{base_url}/health", timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    """Find a port on loopback that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main(arguments: list[str] | None = None) -> int:
    """`python -m clawrl_trl.engines.launch --run DIR`: vLLM as the engine of a run folder."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.engines.launch", description=serve.__doc__)
    parser.add_argument("--run", required=True, help="run folder with a settings.json")
    parser.add_argument("--judge", action="store_true", help="the judge's own server, not the run's engine")
    options = parser.parse_args(arguments)
    return run_main(lambda: serve(options.run, judge=options.judge))


if __name__ == "__main__":
    sys.exit(main())
