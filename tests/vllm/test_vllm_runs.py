"""Runs with a real vLLM, each of its own: a server that runs already, a judge's, a short memory, a whole lesson."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_server import KEY, VLLM, start_engine, stop_engine
from live_run import LiveRun, wait_for
from sqlalchemy import select
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from vllm_live import make_adapter, serve_policy

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Verdict
from clawrl_trl.tiny import MODEL_PATH

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"


def test_a_server_of_somebody_elses(tmp_path: Path) -> None:
    """It runs already, and it calls its model as it likes."""
    process, server = start_engine(
        tmp_path,
        VLLM,
        model_name_or_path=str(MODEL_PATH),
        vllm_args="--served-model-name somebody/elses-model",
    )
    flags = ("--port", "0", "--judge", "off", "--engine", f"{server.base_url}/v1")
    run = LiveRun(tmp_path / "run", *flags, environment={"CLAWRL_ENGINE_KEY": KEY}).start()
    with run.client() as client:
        ask = {"messages": [{"role": "user", "content": "How much is 2 + 3?"}], "max_tokens": 20}
        base = client.chat.completions.with_raw_response.create(model="clawrl", **ask)
        serve_policy(run, make_adapter(tmp_path / "policy-v1"), 1)
        adapted = client.chat.completions.with_raw_response.create(model="clawrl", **ask)
    assert base.headers["x-clawrl-policy-version"] == "0"
    assert adapted.headers["x-clawrl-policy-version"] == "1"
    for reply in (base, adapted):
        assert reply.parse().choices[0].message.content
    assert run.stop() == 0
    stop_engine(process)


def test_a_judge_with_devices_of_its_own(tmp_path: Path) -> None:
    """Its vLLM server runs beside the engine; here both share a processor, as devices are only names."""
    flags = (
        "--judge",
        "llm",
        "--judge_votes",
        "1",
        "--judge_max_tokens",
        "32",
        "--actor_gpus",
        "1",
        "--prm_gpus",
        "1",
    )
    run = LiveRun(tmp_path / "run", "--port", "0", *flags).start()
    assert run.folder.read_announced("judge_engine")
    settings = ServeSettings.load(run.folder.path)
    assert (
        settings.judge_url is not None
        and settings.judge_url != (run.folder.read_announced("engine") or {})["base_url"]
    )
    with run.client() as client:
        messages = [{"role": "user", "content": "How much is 2 + 3?"}]
        reply = client.chat.completions.create(model="clawrl", messages=messages, max_tokens=20)
        answer = {"role": "assistant", "content": reply.choices[0].message.content}
        more = [*messages, answer, {"role": "user", "content": "Are you sure?"}]
        client.chat.completions.create(model="clawrl", messages=more, max_tokens=20)
    ledger = Ledger.open(run.folder.ledger)

    def verdict() -> Verdict | None:
        with ledger.reader() as tx:
            return tx.scalars(select(Verdict)).first()

    found = wait_for(verdict, 120, "the verdict")
    assert (found.judge, len(found.votes)) == ("llm:base", 1)
    ledger.close()
    assert run.stop() == 0
    assert "Route: /v1/chat/completions" in (run.folder.logs / "vllm-judge.log").read_text()


def test_a_server_that_can_not_start_says_why_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "serve", "--run", str(tmp_path), "--port", "0"]
    done = subprocess.run(
        [*command, "--engine", "vllm", "--max_model_len", "100000"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "max_model_len" in done.stderr.splitlines()[-1]


def test_a_context_that_the_memory_can_not_hold_is_shortened(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=2304, hidden_size=64, intermediate_size=64, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=16, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    )  # fmt: skip
    model = tmp_path / "wide"
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(model)
    AutoTokenizer.from_pretrained(MODEL_PATH).save_pretrained(model)
    # 128 KiB a token: 32,768 tokens need 4 GiB, the cache of a CPU has 1
    process, server = start_engine(tmp_path / "run", VLLM, model_name_or_path=str(model), vllm_max_lora_rank=0)
    try:
        with server.http() as http:
            context = http.get("/v1/models").json()["data"][0]["max_model_len"]
            assert 4096 < context < 32768
            answer = http.post("/v1/completions", json={"model": "base", "prompt": [5] * 4000, "max_tokens": 1})
            assert answer.status_code == 200
    finally:
        stop_engine(process)
    assert "started again with the longest that it holds" in (tmp_path / "run" / "engine.log").read_text()


def test_a_lesson_trains_what_vllm_serves(tmp_path: Path) -> None:
    flags = {
        "output_dir": tmp_path, "port": 0, "persona": "student", "interactions": 4, "eval_problems": 6,
        "think_time": 0, "batch_timeout": 1, "engine": "vllm",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["failed_requests"] == 0
    assert metrics["samples_trained"] > 0 and metrics["policy_versions"] > 0
