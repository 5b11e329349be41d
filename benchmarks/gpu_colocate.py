"""Trainer and engine on one device: tokens a second, time to the first token, time of a step and of a swap, memory.

    python benchmarks/gpu_colocate.py --out benchmarks/results

On a GPU the model has Qwen3-4B's shape and random weights, so nothing is downloaded: speed and memory do not depend
on what a model knows. Without a GPU the same plan runs with the bundled model on the processor, and the table says
"not measured" in the GPU's column. Either way what runs is what users run: `clawrl serve` and
`examples/train.py`, as two processes, with clients that stream chats all the time; verdicts are coin tosses.
Writes `gpu_colocate.json`, which keeps both columns, and `gpu_colocate.md`.
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import statistics
import string
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from footprint import measure_tree
from processes import CONTROLS, serve, wait_for
from reporting import RESULTS, ROOT, Row, describe_machine, write_results
from sqlalchemy import select
from swap_under_load import Load

from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Batch, Event, Policy
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.supervisor import read_last_lines
from clawrl_trl.tiny import MODEL_PATH

SHAPE = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}
"""Qwen3-4B's."""
COLUMNS = {"cpu": "bundled model, processor", "gpu": "Qwen3-4B's shape, one GPU"}
ROWS = (
    "date", "machine", "engine", "clients", "tokens/s, engine alone", "tokens/s, training beside it",
    *(f"time to first token, {kind}, {part} ms" for kind in ("alone", "training") for part in ("median", "p95")),
    "updates",
    "tokens of a step", "time of a step, median s", "time of a swap, median s", "time of a swap, largest s",
    "peak memory, engine GiB", "peak memory, trainer GiB", "failed requests",
)  # fmt: skip
ANSWER = "Could you say that in plain sentences, please?"


def write_random_model(folder: Path, device: str = "cuda", layers: int = 36) -> None:
    """Write a model of `SHAPE`: random weights in bfloat16, the bundled tokenizer with its vocabulary filled up."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    for file in MODEL_PATH.glob("*.json*"):
        shutil.copy(file, folder / file.name)
    shutil.copy(MODEL_PATH / "chat_template.jinja", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    used = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    words = ("".join(letters) for letters in itertools.product(string.ascii_letters + string.digits, repeat=3))
    free = (word for word in words if word not in vocabulary)
    vocabulary.update({next(free): token for token in range(SHAPE["vocab_size"]) if token not in used})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        shape = {**SHAPE, "num_hidden_layers": layers}
        model = Qwen3ForCausalLM(Qwen3Config(**shape, eos_token_id=2, pad_token_id=0, bos_token_id=None))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


class Peak(threading.Thread):
    """The largest memory that two process trees take, sampled: on the card where there is one, else resident."""

    def __init__(self, gpu: bool, **roots: int) -> None:
        super().__init__(daemon=True)
        self._gpu, self._roots = gpu, roots
        self.bytes = dict.fromkeys(roots, 0)
        self._halt = threading.Event()

    def run(self) -> None:
        while not self._halt.wait(0.5):
            for name, pid in self._roots.items():
                self.bytes[name] = max(self.bytes[name], self._measure(pid))

    def stop(self) -> dict[str, float | str]:
        """GiB by name; what nvidia-smi doesn't tell, as in some containers, was not measured."""
        self._halt.set()
        self.join()
        return {name: peak / 2**30 if peak else "not measured" for name, peak in self.bytes.items()}

    def _measure(self, pid: int) -> int:
        try:
            root = psutil.Process(pid)
            pids = {pid, *(child.pid for child in root.children(recursive=True))}
            return self._measure_card(pids) if self._gpu else measure_tree(root)
        except psutil.Error:
            return 0

    def _measure_card(self, pids: set[int]) -> int:
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        rows = [line.split(",") for line in lines if line.count(",") == 1]
        # Where the driver won't tell it writes [N/A].
        return sum(int(used) * 2**20 for pid, used in rows if used.strip().isdigit() and int(pid) in pids)


@contextmanager
def train(folder: RunFolder, options: argparse.Namespace, flags: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `examples/train.py` on a folder that is served already, for as long as the block lasts."""
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--output_dir", str(folder.path), *flags]
    command += ["--method", "binary", "--max_steps", str(options.steps), "--batch_timeout", "2"]
    command += ["--per_device_train_batch_size", str(options.batch)]
    environment = os.environ | ({} if options.gpu else {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"})
    with (folder.logs / "trainer.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=0)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(90)


async def play(load: Load, folder: RunFolder, options: argparse.Namespace, flags: list[str]) -> dict[str, float | str]:
    """Load alone, then load with a trainer until it has taken its steps; returns the peak memory.

    Raises:
        RuntimeError: If the trainer failed; with the last lines of its log.
    """
    clients = asyncio.create_task(load.run())
    await asyncio.sleep(options.seconds / 3)
    with load.stretch("alone"):
        await asyncio.sleep(options.seconds)
    engine = (folder.read_announced("engine") or {})["pid"]
    with train(folder, options, flags) as trainer:
        peak = Peak(options.gpu, engine=engine, trainer=trainer.pid)
        peak.start()
        has_begun = lambda: trainer.poll() is not None or _count_updates(folder)  # noqa: E731
        await asyncio.to_thread(wait_for, has_begun, options.patience)
        with load.stretch("training"):
            code = await asyncio.to_thread(trainer.wait, options.patience)
        memory = peak.stop()
    if code:
        raise RuntimeError(f"the trainer ended with {code}: {read_last_lines(folder.logs / 'trainer.log')}")
    load.stop()
    await clients
    return memory


def _count_updates(folder: RunFolder) -> int:
    ledger = Ledger.open(folder.ledger)
    with ledger.reader() as tx:
        count = len(list(tx.scalars(select(Policy.version).where(Policy.version > 0))))
    ledger.close()
    return count


def summarise(load: Load, folder: RunFolder, memory: dict[str, float | str], options: argparse.Namespace) -> Row:
    """One column of the table."""
    from clawrl_trl.ledger import batches

    ledger = Ledger.open(folder.ledger)
    with ledger.reader() as tx:
        trained = [batch for batch in tx.scalars(select(Batch)) if batch.trained_at is not None]
        steps = [batch.trained_at - batch.created_at for batch in trained if batch.trained_at is not None]
        turns = [turn for batch in trained for _, turn in batches.samples_of(tx, batch)]
        tokens = [len(turn.prompt_ids) + len(turn.completion_ids) for turn in turns]
        committed = {policy.version: policy.created_at for policy in tx.scalars(select(Policy))}
        promotions = tx.scalars(select(Event).where(Event.kind == "policy_serving"))
        swaps = [event.at - committed[int(event.subject)] for event in promotions]
    ledger.close()
    return {
        "date": str(date.today()),
        "machine": describe_card() or describe_machine(),
        "engine": options.engine,
        "clients": options.streams,
        "tokens/s, engine alone": load.rate("alone"),
        "tokens/s, training beside it": load.rate("training"),
        **_summarise_waits(load),
        "updates": len(swaps),
        "tokens of a step": sum(tokens) / max(1, len(trained)),
        "time of a step, median s": statistics.median(steps[1:]),
        "time of a swap, median s": statistics.median(swaps),
        "time of a swap, largest s": max(swaps),
        "peak memory, engine GiB": memory["engine"],
        "peak memory, trainer GiB": memory["trainer"],
        "failed requests": sum(reply.error is not None for reply in load.replies),
    }


def _summarise_waits(load: Load) -> Row:
    cuts = {kind: statistics.quantiles(load.waits(kind), n=20) for kind in ("alone", "training")}
    parts = {"median": 9, "p95": 18}
    return {
        f"time to first token, {kind}, {part} ms": 1000 * waits[position]
        for kind, waits in cuts.items()
        for part, position in parts.items()
    }


def describe_card() -> str | None:
    """The GPU's name and memory, or `None`."""
    import torch

    if not torch.cuda.is_available():
        return None
    card = torch.cuda.get_device_properties(0)
    return f"{card.name}, {card.total_memory / 2**30:.0f} GiB"


def make_page(columns: dict[str, Row | None]) -> str:
    """The results as Markdown."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---|---|---|"]
    for row in ROWS:
        cells = [_format_cell((columns.get(name) or {}).get(row)) for name in COLUMNS]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    head = "# Trainer and engine on one device\n\nA step is forward, backward, saving and committing; a swap is from"
    return f"{head} a candidate's commit to its promotion (gate, engine, ledger).\n\n" + "\n".join(lines) + "\n"


def _format_cell(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def measure(options: argparse.Namespace, place: str) -> Row:
    """One column."""
    folder, flags = RunFolder(Path(place) / "run").make(), ["--engine", options.engine]
    flags += ["--custom_rm_path", f"{CONTROLS}:random_sign", "--hints", "false"]
    trainer: list[str] = []
    if options.gpu:
        model: Path = options.model or Path(place) / "model"
        if not (model / "config.json").exists():
            model.mkdir(exist_ok=True)
            write_random_model(model)
        flags += ["--model_name_or_path", str(model), "--max_model_len", "4096"]
        trainer = ["--model_name_or_path", str(model), "--dtype", "bfloat16", "--gradient_checkpointing", "true"]
    with serve(folder, *flags, "--max_running", str(options.streams), timeout=900) as base_url:
        load = Load(base_url, options.streams, options.tokens, ANSWER)
        memory = asyncio.run(play(load, folder, options, [*trainer, *flags]))
        return summarise(load, folder, memory, options)


def main() -> int:
    gpu = describe_card() is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm" if gpu else "transformers", choices=("vllm", "transformers"))
    parser.add_argument("--streams", type=int, default=32 if gpu else 4)
    parser.add_argument("--tokens", type=int, default=512 if gpu else 64, help="tokens of a reply, at most")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8 if gpu else 4)
    parser.add_argument("--seconds", type=float, default=30.0, help="time of load without training")
    parser.add_argument("--patience", type=float, default=900.0, help="longest time for all steps")
    parser.add_argument("--model", type=Path, help="folder of a random model that an earlier call wrote, for a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.gpu = gpu
    file = options.out / "gpu_colocate.json"
    columns = json.loads(file.read_text()) if file.exists() else dict.fromkeys(COLUMNS)
    with tempfile.TemporaryDirectory() as place:
        columns["gpu" if gpu else "cpu"] = measure(options, place)
    write_results(options.out, "gpu_colocate", columns, make_page(columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
