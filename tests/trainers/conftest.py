"""A tiny random Qwen3 and made-up samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from clawrl_trl.credit import TrainingSample

VOCABULARY = 48

torch.set_num_threads(1)


def save_tiny_model(folder: Path) -> Path:
    """A seeded Qwen3 with two layers and its tokenizer, saved to a folder."""
    torch.manual_seed(0)
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<eos>")), pad_token="<pad>", eos_token="<eos>"
    )
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def make_samples(
    count: int, seed: int = 0, *, temperatures: tuple[float, ...] = (1.0,), **fixed: Any
) -> list[TrainingSample]:
    """Ragged random samples with scores, teachers and behaviour log-probs."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        length = int(rng.integers(2, 9))
        values: dict[str, Any] = {
            "sample_id": f"s{seed}-{index}",
            "prompt_ids": rng.integers(2, VOCABULARY, int(rng.integers(1, 7))),
            "completion_ids": rng.integers(2, VOCABULARY, length),
            "logprobs": -rng.uniform(0.5, 6.0, length),
            "temperature": temperatures[index % len(temperatures)],
            "score": float(rng.choice([-1.0, 1.0])),
            "teacher_logprobs": -rng.uniform(0.1, 5.0, length),
            "plain_logprobs": -rng.uniform(0.1, 5.0, length),
            **fixed,
        }
        found.append(TrainingSample(**values))
    return found
