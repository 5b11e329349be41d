"""Checks that log-probs are those of the distribution that was sampled from.

The importance ratio divides the trainer's probability by the engine's. Where the two compute differently, every
update is off by that much; where log-probs belong to another token or another temperature, it is noise. Both are
told apart here by recomputing each sampled token with transformers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.target import Target
from clawrl_trl.doctor.tokens import QUESTION
from clawrl_trl.gateway.capture import Choice
from clawrl_trl.gateway.probe import reports_sampled_logprobs
from clawrl_trl.messages import Json

SEEDS = (1, 2, 3, 4)
TOKENS = 48
NAME = "log-probs at T={}"
PROCESSED = "start vLLM with --logprobs-mode processed_logprobs"

Row = tuple[Sequence[float], Sequence[float]]
"""Log-probs of one reply: reported and expected."""


@dataclass(frozen=True)
class Bound:
    """Largest gaps of log-probs, in nats: on average without and with a warning, and for a single token."""

    mean: float
    tolerable: float
    largest: float


FINE = Bound(mean=1e-3, tolerable=0.02, largest=0.02)
"""Both sides compute in float32."""
COARSE = Bound(mean=0.02, tolerable=0.1, largest=1.0)
"""The engine computes in bfloat16: 8 bits of precision."""


def choose_bound(target: Target) -> Bound:
    """Return the bound that the engine's precision allows."""
    return COARSE if target.is_coarse or target.reference.dtype != "float32" else FINE


async def check_mode(target: Target) -> Finding:
    """Return whether log-probs follow the sampling temperature."""
    name = "log-prob mode"
    if await reports_sampled_logprobs(target.engine, target.base):
        return Finding(name, "ok", "processed: log-probs are those of the distribution sampled from")
    detail = "raw: log-probs are of temperature 1 whatever was sampled at, so other temperatures can't be trained on"
    return Finding(name, "warn", detail, PROCESSED)


async def check_at_temperature_1(target: Target) -> Finding:
    """Check log-probs sampled at temperature 1."""
    return await _compare(target, 1.0)


async def check_at_temperature_half(target: Target) -> Finding:
    """Check log-probs sampled at temperature 0.5."""
    if not await reports_sampled_logprobs(target.engine, target.base):
        raise Skip("the engine reports log-probs of temperature 1 only")
    return await _compare(target, 0.5)


async def check_prompt_logprobs(target: Target) -> Finding:
    """Return whether `prompt_logprobs` are raw, complete and in their places: the teacher's scores come from them."""
    name = "prompt log-probs"
    reply = (await _sample_replies(target, 1.0))[0]
    assert reply.prompt_ids is not None
    scored = await target.engine.prompt_logprobs(reply.prompt_ids, reply.token_ids, model=target.base)
    try:
        expected = target.reference.logprobs(reply.prompt_ids, reply.token_ids)
    except Skip:  # without a reference there are still the engine's own two figures to compare
        return rate_gaps(name, [(scored.logprobs, reply.logprobs)], COARSE, "the ones it sampled with")
    against = f"transformers' in {target.reference.dtype}"
    return rate_gaps(name, [(scored.logprobs, expected)], choose_bound(target), against)


async def _sample_replies(target: Target, temperature: float) -> list[Choice]:
    body: Json = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": temperature,
        "max_tokens": TOKENS,
    }
    replies = await asyncio.gather(*(target.request_reply({**body, "seed": seed}) for seed in SEEDS))
    for reply in replies:
        if obstacle := reply.obstacle():
            raise Skip(obstacle)
    return replies


async def _compare(target: Target, temperature: float) -> Finding:
    rows = []
    for reply in await _sample_replies(target, temperature):
        assert reply.prompt_ids is not None
        rows.append((reply.logprobs, target.reference.logprobs(reply.prompt_ids, reply.token_ids, temperature)))
    name, against = NAME.format(f"{temperature:g}"), f"transformers' in {target.reference.dtype}"
    return rate_gaps(name, rows, choose_bound(target), against)


def rate_gaps(name: str, rows: Sequence[Row], bound: Bound, against: str) -> Finding:
    """Rate gaps between log-probs, with the likeliest explanation when they are apart.

    Args:
        name: Name of the finding.
        rows: For each reply the engine's log-probs and the expected ones, both `[T]`, in nats.
        bound: How far they may be apart.
        against: Source of the expected ones, in words.
    """
    gaps = [abs(a - b) for reported, expected in rows for a, b in zip(reported, expected, strict=True)]
    mean, largest = fmean(gaps), max(gaps)
    detail = f"mean gap {mean:.2g} to {against}, largest {largest:.2g}, {len(gaps)} tokens"
    if mean <= bound.mean and largest <= bound.largest:
        return Finding(name, "ok", detail)
    # Within the bound the values fit their own tokens, however well they fit a neighbour's.
    if (place := find_shift(rows)) and mean > bound.mean:
        fix = "use another version of the engine"
        return Finding(name, "fail", f"{detail}: they belong to the {place} token", fix)
    fix = "serve the trained weights unquantised and in the trainer's type; check rope and attention settings"
    return Finding(name, "warn" if mean <= bound.tolerable else "fail", detail, fix)


def find_shift(rows: Sequence[Row]) -> str | None:
    """Return the neighbour whose token the values fit far better than their own: `"previous"`, `"next"` or `None`."""
    own = _mean_gap([pair for row in rows for pair in zip(*row, strict=True)])
    previous = _mean_gap(
        [pair for reported, expected in rows for pair in zip(reported[1:], expected[:-1], strict=True)]
    )
    following = _mean_gap(
        [pair for reported, expected in rows for pair in zip(reported[:-1], expected[1:], strict=True)]
    )
    place, gap = min(("previous", previous), ("next", following), key=lambda neighbour: neighbour[1])
    return place if gap < own / 4 else None


def _mean_gap(pairs: Sequence[tuple[float, float]]) -> float:
    return fmean(abs(a - b) for a, b in pairs) if pairs else float("inf")
