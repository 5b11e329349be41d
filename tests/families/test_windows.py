"""Layers that attend to a window: what the embedded engine samples and scores beyond it, against plain passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_checks import logprobs_of, reference_logits
from engine_decoding import start_decoding
from family_models import find_family
from transformers import AutoModelForCausalLM

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.embedded.engine import Engine

WINDOW = 16
KINDS = {
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"]},
    "gpt-oss": {},
    "mistral": {},  # every layer has the window, and no layer says so
    "qwen2.5": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3-moe": {"use_sliding_window": True},
}


def make_engine(name: str, folder: Path) -> tuple[Engine, Any]:
    find_family(name).save(folder, sliding_window=WINDOW, **KINDS[name])
    engine = Engine.load(ServeSettings(run="unused", max_model_len=512), str(folder))
    return engine, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_rows_beyond_a_window_keep_their_own_numbers(name: str, tmp_path: Path) -> None:
    engine, reference = make_engine(name, tmp_path)
    assert engine.max_model_len == 512
    first, batch, updates = start_decoding(engine, [40, 3, 17], chunk=24, prompt_logprobs=0, max_tokens=60)
    updates += [update for _ in range(20) for update in batch.step()]
    second, joiner, more = start_decoding(engine, [90, 1], chunk=512, max_tokens=60)
    batch.join(joiner)
    updates += more
    for going in ([0, 1, 2, 3, 4], [1, 3, 4], [0, 2], [1]):
        batch.keep(going)
        updates += [update for _ in range(6) for update in batch.step()]

    for generation in first + second:
        own = [update for update in updates if update.generation is generation]
        ids = [token for update in own for token in update.token_ids]
        expected = logprobs_of(reference_logits(reference, generation.prompt_ids, ids), ids)
        assert [value for update in own for value in update.logprobs] == pytest.approx(expected, abs=2e-4)
        # A model whose window is wider than the text computes something else, so the window is what is tested.
        if len(generation.prompt_ids) + len(ids) > WINDOW + 1:
            assert logprobs_of(_without_window(reference, generation.prompt_ids, ids), ids) != pytest.approx(
                expected, abs=1e-2
            )
    for generation in first:
        prompt = generation.prompt_ids
        assert generation.prompt_scores is not None
        expected = logprobs_of(reference_logits(reference, prompt[:1], prompt[1:]), prompt[1:])
        assert generation.prompt_scores.logprobs == pytest.approx(expected, abs=2e-4)


def _without_window(reference: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
    reference.config.sliding_window, window = 512, reference.config.sliding_window
    try:
        return reference_logits(reference, prompt, ids)
    finally:
        reference.config.sliding_window = window
