"""Made-up samples, a tiny random Qwen3, and a ledger filled with both."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from clawrl_trl.credit import LedgerSource, TrainingSample
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Sample, Turn, Verdict

VOCABULARY = 48


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


def make_samples(
    count: int, seed: int = 0, *, temperatures: tuple[float, ...] = (1.0,), **fixed: Any
) -> list[TrainingSample]:
    """Ragged random samples with scores, teachers and behaviour log-probs."""
    rng = np.random.default_rng(seed)
    samples = []
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
        samples.append(TrainingSample(**values))
    return samples


def with_candidates(sample: TrainingSample, k: int, seed: int = 0, *, empty: float = 0.0) -> TrainingSample:
    """The sample with K distinct candidates for each token and a share of empty slots; the last token has none."""
    rng = np.random.default_rng(seed)
    length = len(sample.completion_ids)
    ids = np.stack([rng.permutation(VOCABULARY)[:k] for _ in range(length)])
    teacher = rng.normal(size=(length, VOCABULARY)) * 2
    teacher -= np.log(np.exp(teacher).sum(axis=1, keepdims=True))
    ids[rng.random(ids.shape) < empty] = -1
    if empty:
        ids[-1] = -1
    logprobs = np.where(ids >= 0, np.take_along_axis(teacher, ids.clip(min=0), axis=1), np.nan)
    return replace(sample, topk_ids=ids, topk_logprobs=logprobs)


def fill(ledger: Ledger, samples: list[TrainingSample], *, session: str = "chat") -> list[str]:
    """Put samples into a ledger the way gateway and judge do; returns their ids in the ledger."""
    ids = []
    with ledger.transaction() as tx:
        now = time.time()
        owner = turns.get_or_create_session(tx, owner="local", external_id=session, identity_source="header", now=now)
        for sample in samples:
            turn = turns.add(
                tx,
                Turn(
                    session_id=owner.id,
                    completion_id=f"{session}-{sample.sample_id}",
                    messages=[{"role": "user", "content": "hello"}],
                    response={"role": "assistant", "content": "hi"},
                    provenance=["owner"],
                    sampling={"temperature": sample.temperature},
                    prompt_ids=sample.prompt_ids,
                    completion_ids=sample.completion_ids,
                    logprobs=sample.logprobs,
                    trainable=True,
                    policy_version=sample.policy_version,
                ),
            )
            turns.set_next_state(tx, turn.id, [{"role": "user", "content": "ok"}], ["owner"], None, now)
            row = Sample(
                turn_id=turn.id,
                score=sample.score,
                teacher_logprobs=sample.teacher_logprobs,
                plain_logprobs=sample.plain_logprobs,
                topk_ids=None if sample.topk_ids is None else sample.topk_ids.ravel(),
                topk_logprobs=None if sample.topk_logprobs is None else sample.topk_logprobs.ravel(),
                group=sample.group,
                weight=sample.weight,
                policy_version=sample.policy_version,
            )
            turns.record_verdict(tx, Verdict(turn_id=turn.id, judge="test", score=sample.score), row)
            ids.append(row.id)
    return ids


def open_source(ledger: Ledger) -> LedgerSource:
    """A ledger's samples, until none is left."""

    def is_empty() -> bool:
        with ledger.reader() as tx:
            return tx.query(Sample).where(Sample.state.in_(["ready", "leased"])).count() == 0

    return LedgerSource(ledger, poll_s=0.01, timeout_s=0.0, stop=is_empty)
