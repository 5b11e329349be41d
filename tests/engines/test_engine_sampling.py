"""The sampler against plain formulas."""

import math
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clawrl_trl.engines.embedded.sampling import Sampler, Sampling

CPU = torch.device("cpu")
VOCABULARY = 24


@dataclass
class Drawer:
    sampling: Sampling
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(0))


def plain(row: Drawer, logits: torch.Tensor) -> torch.Tensor:
    """The distribution of one row, one rule after the other, in float64."""
    one, values = row.sampling, logits.double().tolist()
    for token, bias in one.logit_bias.items():
        values[token] += bias
    if len(row.output_ids) < one.min_tokens:
        for token in one.stop_token_ids:
            values[token] = -math.inf
    for token in {*row.prompt_ids, *row.output_ids}:
        values[token] *= 1 / one.repetition_penalty if values[token] > 0 else one.repetition_penalty
    for token in set(row.output_ids):
        values[token] -= one.frequency_penalty * row.output_ids.count(token) + one.presence_penalty
    if one.is_greedy:
        return torch.tensor(values, dtype=torch.float64).log_softmax(-1)
    heated = torch.tensor(values, dtype=torch.float64) / one.temperature
    shares = heated.softmax(-1)
    heated[shares < one.min_p * shares.max()] = -math.inf
    order = sorted(range(VOCABULARY), key=lambda token: -heated[token].item())
    kept = order[: one.top_k or None]
    mass = heated[kept].softmax(-1)
    inside = [token for place, token in enumerate(kept) if place == 0 or mass[:place].sum() < one.top_p]
    mask = torch.full_like(heated, -math.inf)
    mask[inside] = 0
    return (heated + mask).log_softmax(-1)


ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=6)
rules = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.35]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    min_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.sampled_from([frozenset[int](), frozenset({2, 7})]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 5: -100.0}]),
    top_logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(rules, ids, ids), min_size=1, max_size=4), seed=st.integers(0, 10**6))
def test_each_row_has_its_own_distribution(rows: list[tuple[Sampling, list[int], list[int]]], seed: int) -> None:
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    drawers = [Drawer(*row) for row in rows]
    sampler = Sampler(drawers, VOCABULARY, CPU)
    expected = torch.stack([plain(row, one) for row, one in zip(drawers, logits, strict=True)])
    drawn = sampler.draw(logits)
    for place, row in enumerate(drawers):
        assert drawn.logprobs[place] == pytest.approx(expected[place, drawn.ids[place]].item(), abs=1e-4)
        assert math.isfinite(drawn.logprobs[place])
        assert len(drawn.alternatives[place]) == (row.sampling.top_logprobs or 0)
        if row.sampling.is_greedy:
            assert expected[place, drawn.ids[place]] == pytest.approx(expected[place].max().item(), abs=1e-6)


def test_penalties_follow_what_was_drawn() -> None:
    row = Drawer(Sampling(temperature=0, presence_penalty=2, frequency_penalty=2, top_logprobs=0))
    sampler = Sampler([row], VOCABULARY, CPU)
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 4], logits[0, 9] = 3.0, 2.5
    drawn = [sampler.draw(logits).ids[0] for _ in range(3)]
    assert drawn == [4, 9, 0]


def test_frequencies_are_the_distribution() -> None:
    row = Drawer(Sampling(temperature=0.7, top_p=0.9))
    sampler = Sampler([row], VOCABULARY, CPU)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    draws = torch.tensor([sampler.draw(logits).ids[0] for _ in range(6000)])
    shares = torch.bincount(draws, minlength=VOCABULARY) / len(draws)
    expected = plain(row, logits[0]).exp()
    assert shares[expected == 0].sum() == 0
    assert torch.allclose(shares.double(), expected, atol=0.02)


def test_logits_that_are_not_numbers_are_not_hidden() -> None:
    sampler = Sampler([Drawer(Sampling())], VOCABULARY, CPU)
    assert math.isnan(sampler.draw(torch.full((1, VOCABULARY), math.nan)).logprobs[0])
