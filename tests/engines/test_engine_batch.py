"""Prefill, joining and leaving, step by step, against dense forwards."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_checks import logprobs_of, reference_logits, reference_model
from engine_decoding import start_decoding

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.context import choose_embedded_context
from clawrl_trl.engines.embedded.engine import Engine, choose_context
from clawrl_trl.errors import UserError


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Engine:
    return Engine.load(ServeSettings(run="unused", max_model_len=512), str(model_folder / "base"))


@pytest.mark.parametrize("attention", ["grouped", "eager"])
@torch.inference_mode()
def test_rows_that_join_and_leave_keep_their_own_numbers(engine: Engine, model_folder: Path, attention: str) -> None:
    model = engine.policies.base.model
    before = model.config._attn_implementation
    if attention == "eager":
        model.set_attn_implementation("eager")
    try:
        first, batch, updates = start_decoding(engine, [40, 3, 17], chunk=24)
        updates += [update for _ in range(5) for update in batch.step()]
        second, joiner, more = start_decoding(engine, [90, 1], chunk=512)
        updates += more
        batch.join(joiner)
        for going in ([0, 1, 2, 3, 4], [1, 3, 4], [0, 2], [1]):
            batch.keep(going)
            updates += [update for _ in range(4) for update in batch.step()]
    finally:
        model.set_attn_implementation(before)
    reference = reference_model(model_folder / "base")
    for generation in first + second:
        own = [update for update in updates if update.generation is generation]
        ids = [token for update in own for token in update.token_ids]
        assert len(ids) > 5
        expected = logprobs_of(reference_logits(reference, generation.prompt_ids, ids), ids)
        assert [value for update in own for value in update.logprobs] == pytest.approx(expected, abs=1e-4)


def test_only_what_the_cache_does_not_hold_is_refused() -> None:
    window = SimpleNamespace(max_position_embeddings=4096, sliding_window=1024, layer_types=["sliding_attention"])
    assert choose_embedded_context(window, 2048, itemsize=4, free=0) == 2048
    linear = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(layer_types=["linear_attention"]))
    with pytest.raises(UserError, match="linear_attention"):
        choose_context(SimpleNamespace(config=linear), 2048)
    shared = SimpleNamespace(
        get_text_config=lambda decoder: SimpleNamespace(layer_types=["full_attention"], num_kv_shared_layers=2)
    )
    with pytest.raises(UserError, match=r"share their keys and values: use --engine vllm"):
        choose_context(SimpleNamespace(config=shared), 2048)
