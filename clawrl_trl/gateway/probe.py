"""Probe of an engine: finds out by a request which log-probs it reports.

A turn's log-probs have to be those of the distribution it was sampled from, temperature included. vLLM reports
them so only with `--logprobs-mode processed_logprobs`; by default they belong to temperature 1, and nothing in a
reply tells. Between two tokens the gap of log-probs is inversely proportional to the temperature, so two questions
settle it: at half the temperature the gap must double.
"""

from typing import Any

from clawrl_trl.engines.client import EngineClient

PROMPT = "The"
WARM, COOL = 1.0, 0.5
TOP = 5
RAW_BELOW = 1.5
"""The ratio of gaps is 2 for log-probs of the sampled distribution and 1 for raw ones; this is half way."""


async def reports_sampled_logprobs(engine: EngineClient, model: str) -> bool:
    """Return whether the engine's log-probs follow the sampling temperature.

    Args:
        engine (`EngineClient`): The engine.
        model (`str`): A model that it serves.

    Raises:
        EngineError: If it can't be asked.
    """
    warm, cool = [await _request_top_logprobs(engine, model, temperature) for temperature in (WARM, COOL)]
    common = sorted(warm.keys() & cool.keys(), key=lambda token: warm[token])
    # Where there is no gap at either temperature, both kinds of log-probs are the same.
    if len(common) < 2 or warm[common[-1]] - warm[common[0]] < 1e-3:
        return True
    low, high = common[0], common[-1]
    return (cool[high] - cool[low]) / (warm[high] - warm[low]) > RAW_BELOW


async def _request_top_logprobs(engine: EngineClient, model: str, temperature: float) -> dict[str, float]:
    request: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 1, "logprobs": TOP}
    # Stated, because vLLM takes what is left open from the model's `generation_config`.
    plain = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    reply = await engine.completions(request | plain)
    choices = reply.get("choices") or [{}]
    rows = (choices[0].get("logprobs") or {}).get("top_logprobs") or [{}]
    return {str(token): float(value) for token, value in (rows[0] or {}).items()}
