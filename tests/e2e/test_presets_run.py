"""Each preset of a named model takes a step; one goes from the first chat to a trained adapter.

The model is of the preset's family, with random weights, two layers and narrow ones, so that it runs on a processor.
What the preset asks of a card (a vLLM, 4-bit weights, minutes of waiting for a batch) is overridden; all else holds.
"""

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import torch
from engine_models import _tokenizer
from made_up import fill, make_samples, open_source, with_candidates
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import get_peft_config

from clawrl_trl.config.presets import BUNDLED, list_presets
from clawrl_trl.ledger import Ledger
from clawrl_trl.script import parse
from clawrl_trl.trainers import AsyncGRPOTrainer, CombineTrainer, OPDTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("presets")]

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
WITHOUT_CARD = ["--engine", "transformers", "--load_in_4bit", "false", "--judge", "rules"]
FEW_CHATS = ["--persona", "student", "--interactions", "3", "--eval_problems", "1", "--think_time", "0"]
IN_HASTE = ["--batch_timeout", "1", "--port", "0"]


@pytest.fixture(scope="module")
def random_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen3: query norms, grouped queries and a tied head, as in the models of the presets."""
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer = _tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


NAMED = [name for name in list_presets() if name != BUNDLED]
PLAYED = ("qwen3-8b-80gb", "combine")
"""The preset and the method that serve and train a user. `combine` learns from verdicts too: whether random weights
get a hint that their teacher accepts is a matter of chance, and without one `opd` alone has nothing to train."""
CANDIDATES = 4
"""A teacher's for each token."""
TRAINERS = {"binary": AsyncGRPOTrainer, "opd": OPDTrainer, "combine": CombineTrainer}


def check_adapter(newest: Path) -> None:
    """It is finite, and no longer the one that changes nothing."""
    trained = [weight for name, weight in load_file(newest / "adapter_model.safetensors").items() if "lora_B" in name]
    assert trained and all(torch.isfinite(weight).all() for weight in trained)
    assert any(weight.abs().max() > 0 for weight in trained)


@pytest.mark.parametrize(("preset", "method"), zip(NAMED, cycle(TRAINERS), strict=False))
def test_a_preset_takes_a_step(preset: str, method: str, random_qwen3: Path, tmp_path: Path) -> None:
    words = ["--preset", preset, "--method", method, "--model_name_or_path", str(random_qwen3)]
    _, config, model, _ = parse([*words, "--output_dir", str(tmp_path), *WITHOUT_CARD])
    ledger = Ledger.open(tmp_path / "ledger.db")
    fill(ledger, [with_candidates(sample, CANDIDATES) for sample in make_samples(config.step_batch_size)])
    trainer = TRAINERS[method](
        model=str(random_qwen3), args=config, source=open_source(ledger), peft_config=get_peft_config(model)
    )
    trainer.train()
    ledger.close()
    assert trainer.state.global_step > 0 and trainer.policy_version > 0
    trainer.save_model(str(tmp_path / "saved"))
    check_adapter(tmp_path / "saved")


def test_a_preset_trains(random_qwen3: Path, tmp_path: Path) -> None:
    (preset, method), run = PLAYED, tmp_path / "run"
    words = [
        "--preset",
        preset,
        "--method",
        method,
        "--model_name_or_path",
        str(random_qwen3),
        "--output_dir",
        str(run),
    ]
    command = [sys.executable, str(SCRIPT), *words, *WITHOUT_CARD, *FEW_CHATS, *IN_HASTE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Training by {method} with preset {preset};" in done.stdout
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["interactions"] == 3 and metrics["failed_requests"] == 0
    assert metrics["samples_trained"] > 0 and metrics["policy_versions"] > 0
    newest = max((run / "policies").glob("policy-v*"), key=lambda path: int(path.name.rpartition("v")[2]))
    check_adapter(newest)
