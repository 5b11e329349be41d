"""The divergence over candidates and tail, against its definition in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.trainers.terms.topk import partition_kl

VOCABULARY = 24


def random_log_probs(seed: int, rows: int, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64) * spread).log_softmax(-1)


def plain_kl(student: np.ndarray, teacher: np.ndarray, candidates: list[int]) -> float:
    """The definition, token by token: each candidate by itself, the rest summed up."""
    p, q = np.exp(student), np.exp(teacher)
    rest = [token for token in range(len(p)) if token not in candidates]
    total = sum(p[token] * (np.log(p[token]) - np.log(q[token])) for token in candidates)
    if rest:
        total += p[rest].sum() * (np.log(p[rest].sum()) - np.log(q[rest].sum()))
    return float(total)


def candidates_of(student: torch.Tensor, k: int, empty: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The K most likely tokens of each row, of which some slots are empty; never all, unless K is as small."""
    ids = student.topk(k, dim=-1).indices
    known = torch.ones_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        known[row, torch.randperm(k, generator=torch.Generator().manual_seed(row))[:empty]] = False
    return ids, known


@pytest.mark.parametrize(("k", "empty"), [(1, 0), (4, 0), (6, 3), (VOCABULARY, 0)])
def test_values_and_gradients_are_those_of_the_definition(k: int, empty: int) -> None:
    logits = random_log_probs(1, 7).requires_grad_()
    teacher = random_log_probs(2, 7)
    ids, known = candidates_of(logits, k, empty)
    student = logits.log_softmax(-1)
    divergence = partition_kl(student.gather(1, ids), teacher.gather(1, ids), known)
    expected = [
        plain_kl(s, t, i[m].tolist())
        for s, t, i, m in zip(student.detach().numpy(), teacher.numpy(), ids.numpy(), known.numpy(), strict=True)
    ]
    np.testing.assert_allclose(divergence.detach().numpy(), expected, rtol=0, atol=1e-9)

    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    inside = torch.zeros_like(teacher, dtype=torch.bool).scatter(1, ids, known)
    student = logits.log_softmax(-1)
    p, q = student.exp(), teacher.exp()
    total = (p * (student - teacher))[inside].sum()
    if k < VOCABULARY:
        p_rest, q_rest = (p * ~inside).sum(-1), (q * ~inside).sum(-1)
        total = total + (p_rest * (p_rest.log() - q_rest.log())).sum()
    (expected_gradient,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-9)


def test_with_the_whole_vocabulary_it_is_the_full_divergence() -> None:
    logits, teacher = random_log_probs(3, 5).requires_grad_(), random_log_probs(4, 5)
    student = logits.log_softmax(-1)
    known = torch.ones_like(student, dtype=torch.bool)
    full = (student.exp() * (student - teacher)).sum(-1)
    divergence = partition_kl(student, teacher, known)
    torch.testing.assert_close(divergence, full, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (divergence, full)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)


@given(st.integers(0, 10_000), st.permutations(range(VOCABULARY)), st.data())
def test_coarser_partitions_are_lower_bounds(seed: int, order: list[int], data: Any) -> None:
    student, teacher = random_log_probs(seed, 1), random_log_probs(seed + 1, 1)
    sizes = sorted(data.draw(st.sets(st.integers(1, VOCABULARY), min_size=1)))
    divergences = []
    for size in sizes:
        ids = torch.tensor([order[:size]])
        divergences.append(float(partition_kl(student.gather(1, ids), teacher.gather(1, ids), ids >= 0)))
    full = float((student.exp() * (student - teacher)).sum())
    assert all(a <= b + 1e-9 for a, b in zip(divergences, [*divergences[1:], full], strict=True))
    assert divergences[0] >= -1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharp", [10.0, 30.0, 200.0])
def test_an_empty_tail_gives_finite_numbers(dtype: torch.dtype, sharp: float) -> None:
    logits = torch.zeros(2, VOCABULARY, dtype=dtype)
    logits[0, 0], logits[1, 5] = sharp, sharp
    logits.requires_grad_()
    student = logits.log_softmax(-1)
    ids = torch.tensor([[0, 1], [0, 1]])
    teacher = student.detach().flip(0)
    divergence = partition_kl(student.gather(1, ids), teacher.gather(1, ids), ids >= 0)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    assert divergence.isfinite().all() and gradient.isfinite().all()
    assert (divergence > -1e-5).all() and gradient.abs().max() < 2 * sharp


def test_the_teachers_mass_may_be_rounded_above_one() -> None:
    student = torch.tensor([[0.5, 0.25]]).log().requires_grad_()
    divergence = partition_kl(student, torch.tensor([[0.6, 0.4001]]).log(), torch.ones(1, 2, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(divergence.sum(), student)
    assert divergence.isfinite().all() and gradient.isfinite().all()


def test_empty_slots_contribute_nothing() -> None:
    student, teacher = random_log_probs(5, 3).requires_grad_(), random_log_probs(6, 3)
    known = torch.tensor([[True, False], [True, False], [False, False]])
    divergence = partition_kl(student[:, :2], torch.where(known, teacher[:, :2], torch.nan), known)
    alone = partition_kl(student[:, :1], teacher[:, :1], known[:, :1])
    torch.testing.assert_close(divergence, alone, rtol=0, atol=0)
    assert divergence[2] == 0.0
    (gradient,) = torch.autograd.grad(divergence.sum(), student)
    assert gradient.isfinite().all()
    assert not gradient[2].any() and not gradient[:, 1:].any()


def test_a_bound_on_the_gap_bounds_the_gradient() -> None:
    student = torch.tensor([[0.9, 0.05]], dtype=torch.float64).log().requires_grad_()
    teacher = torch.tensor([[1e-8, 0.04]], dtype=torch.float64).log()
    known = torch.ones(1, 2, dtype=torch.bool)
    (gradient,) = torch.autograd.grad(partition_kl(student, teacher, known, 1.0).sum(), student)
    tail = np.log(0.05 / (1 - 0.04 - 1e-8))
    gaps = np.clip([np.log(0.9 / 1e-8), np.log(0.05 / 0.04), tail], -1.0, 1.0)
    np.testing.assert_allclose(gradient[0].numpy(), np.array([0.9, 0.05]) * (gaps[:2] - gaps[2]), atol=1e-12)
