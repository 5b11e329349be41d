"""A scoring call of a long conversation: what does it cost the process that serves every chat?

    python benchmarks/scoring.py --out benchmarks/results

A vLLM server of ours scores the last tokens of a prompt: in vLLM's dialect (`/v1/completions` with `prompt_logprobs`:
every token of the prompt, JSON with texts) and on its own route (`/v1/scores`: packed, the scored tokens alone). The
CPU seconds are those of the API server, which is the process that answers chats, and of the client; the model's own
work is another process's. The model is the bundled one with a longer context: what is counted here depends on the
number of tokens and candidates, not on weights.

Needs vLLM. Writes `scoring.json` and `.md`.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from processes import wait_for
from reporting import RESULTS, Row, describe_setting, make_table, write_results

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.address import EngineAddress, EngineClientBase
from clawrl_trl.engines.calls import EngineCall
from clawrl_trl.engines.launch import engine_command
from clawrl_trl.engines.scores import PromptLogprobs, make_packed_call, make_plain_call, read_packed, read_plain
from clawrl_trl.messages import Json
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.supervisor import Child, Supervisor
from clawrl_trl.tiny import MODEL_PATH

COLUMNS = ("tokens", "scored", "top_k", "route", "server_cpu_s", "reply_mib", "client_cpu_s", "wall_s")
Reader = Callable[[Json], PromptLogprobs]
LARGEST_CPU_S, LARGEST_MIB = 1.0, 1.0
"""Most that a call on the route of ours may cost at 16,384 tokens and 64 candidates."""


def make_model(folder: Path, context: int) -> Path:
    """Make the bundled model with a longer context, whose replies would be nonsense there."""
    shutil.copytree(MODEL_PATH, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    return folder


class Target:
    """A server under measurement.

    Args:
        address: Where it listens.
        process: Its API server.
    """

    def __init__(self, address: EngineAddress, process: psutil.Process) -> None:
        self._base = EngineClientBase(lambda: address, timeout=1800)
        self._process = process
        self._http = httpx.Client(trust_env=False)

    def measure(self, call: EngineCall, read: Reader) -> tuple[Row, PromptLogprobs]:
        """Send a call and read its answer; the costs and the scores."""
        arguments = self._base.build_arguments(call, None)
        before, began = _cpu(self._process), time.monotonic()
        response = self._http.request(**arguments)
        wall = time.monotonic() - began
        server = _cpu(self._process) - before
        response.raise_for_status()
        before = _cpu(psutil.Process())
        scores = read(json.loads(response.content))
        client = _cpu(psutil.Process()) - before
        size = len(response.content) / 2**20
        return {"server_cpu_s": server, "reply_mib": size, "client_cpu_s": client, "wall_s": wall}, scores


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def compare(target: Target, tokens: int, scored: int, top_k: int) -> list[Row]:
    """Measure both routes on the same prompt, and that they agree."""
    ids = [random.Random(tokens).randrange(5, 300) for _ in range(tokens)]
    context, completion = ids[:-scored], ids[-scored:]
    plain, expected = target.measure(
        make_plain_call(context, completion, "base", top_k),
        lambda reply: read_plain(reply, len(context), completion, top_k),
    )
    packed, scores = target.measure(
        make_packed_call(context, completion, "base", top_k), lambda reply: read_packed(reply, completion, top_k)
    )
    apart = max(abs(a - b) for a, b in zip(scores.logprobs, expected.logprobs, strict=True))
    if apart > 1e-4:
        raise RuntimeError(f"the two routes differ by {apart} nats")
    setting = {"tokens": tokens, "scored": scored, "top_k": top_k}
    return [setting | {"route": "/v1/completions"} | plain, setting | {"route": "/v1/scores"} | packed]


def judge(row: Row) -> str:
    """Rate a row."""
    if row["route"] != "/v1/scores":
        return ""
    return "ok" if row["server_cpu_s"] <= LARGEST_CPU_S and row["reply_mib"] <= LARGEST_MIB else "too much"


def write(out: Path, rows: list[Row]) -> None:
    """Write the rows, and a page about them, to a folder."""
    what = (__doc__ or "").split("\n\n")[2]
    page = f"# Scoring calls\n\n{describe_setting()}.\n\n{what}\n\n{make_table(COLUMNS, rows, judge)}\n"
    write_results(out, "scoring", rows, page)


def find_api_server(folder: RunFolder) -> tuple[EngineAddress, psutil.Process]:
    """Find the address of a run's vLLM and the process that serves it."""
    announced = folder.read_announced("engine")
    assert announced is not None
    (server,) = psutil.Process(announced["pid"]).children()
    return EngineAddress.of(announced["base_url"], announced["key"]), server


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tokens", type=int, nargs="*", default=[4096, 16384])
    parser.add_argument("--scored", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run").make()
        context = max(options.tokens) + 64
        model = make_model(Path(name) / "model", context)
        settings = ServeSettings(
            run=str(folder.path), engine="vllm", model_name_or_path=str(model), max_model_len=context, max_running=8
        )
        settings.save()
        supervisor = Supervisor(folder.logs)
        supervisor.start(Child("engine", engine_command(settings)))
        try:
            wait_for(lambda: folder.read_announced("engine"), 600)
            target = Target(*find_api_server(folder))
            compare(target, 256, 64, 4)  # nothing of a first call counts
            rows = [
                row
                for tokens in options.tokens
                for top_k in (0, 64)
                for row in compare(target, tokens, options.scored, top_k)
            ]
        finally:
            supervisor.stop()
    write(options.out, rows)


if __name__ == "__main__":
    main()
