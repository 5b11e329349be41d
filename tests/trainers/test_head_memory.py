"""Memory of what multiplies with the head, at a real vocabulary and length, and the gate's figure itself."""

from collections.abc import Callable

import pytest
import torch
from live_bytes import LiveBytes
from torch._subclasses.fake_tensor import FakeTensorMode

from clawrl_trl.doctor.memory import HEAD_BYTES, HEAD_POSITIONS
from clawrl_trl.trainers.terms.divergence import _sum_gaps
from clawrl_trl.trainers.terms.lm_head import CHUNK, LMHead, map_chunks

VOCABULARY, WIDTH, TOKENS = 151_936, 2560, 32_768
"""Qwen3-4B's, and the longest sample."""
BOUND = 1.5 * 2**30
Term = Callable[[LMHead, torch.Tensor, torch.Tensor], torch.Tensor]


def exact_divergence(head: LMHead, hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """As `BasePull` takes it, with gradient to the policy alone."""

    def diverge(hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            base_logits = head.logits(base)
        return _sum_gaps(head.logits(hidden), base_logits)

    return map_chunks(diverge, hidden, base)


def candidates(head: LMHead, hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """As `CandidateLogProbs` takes them, 64 a token."""
    ids = torch.zeros(len(hidden), 64, dtype=torch.long)

    def score(hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = head.logits(hidden)
        return logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)

    return map_chunks(score, hidden, ids)


def measure_peak(term: Term, *, gradient: bool, tokens: int = TOKENS) -> int:
    """Largest number of bytes that a term holds beside the head and the hidden states."""
    with FakeTensorMode():
        weight = torch.empty(VOCABULARY, WIDTH, dtype=torch.bfloat16)
        hidden, base = (torch.empty(tokens, WIDTH, dtype=torch.bfloat16) for _ in range(2))
        hidden.requires_grad_(gradient)
        with LiveBytes([weight, hidden, base]) as live, torch.set_grad_enabled(gradient):
            value = term(LMHead(weight, None), hidden, base)
            if gradient:
                value.sum().backward()
    return live.peak


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("term", [exact_divergence, candidates])
def test_a_term_holds_a_chunk_of_logits(term: Term, gradient: bool) -> None:
    assert measure_peak(term, gradient=gradient) < BOUND


def test_the_doctor_counts_on_these_chunks() -> None:
    assert HEAD_POSITIONS == CHUNK
    counted = measure_peak(exact_divergence, gradient=True, tokens=4096)
    assert counted == pytest.approx(CHUNK * VOCABULARY * HEAD_BYTES, rel=0.05)


def test_whole_logits_would_not_fit() -> None:
    def whole(head: LMHead, hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        return _sum_gaps(head.logits(hidden), head.logits(base))

    assert measure_peak(whole, gradient=False, tokens=1024) > BOUND


def test_chunks_add_nothing_to_the_divergence() -> None:
    torch.manual_seed(0)
    head = LMHead(torch.randn(37, 8, dtype=torch.float64), None)
    hidden, base = torch.randn(600, 8, dtype=torch.float64), torch.randn(600, 8, dtype=torch.float64)
    policy, reference = (torch.distributions.Categorical(logits=head.logits(states)) for states in (hidden, base))
    torch.testing.assert_close(
        exact_divergence(head, hidden, base), torch.distributions.kl_divergence(policy, reference)
    )
