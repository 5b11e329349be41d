"""Checks of sampling defaults and limits that change the distribution without being requested.

A model's `generation_config.json` often carries top_k, top_p or a temperature for nicer chats, and vLLM takes them
as defaults. The gateway fills in plain sampling for what a client leaves open, so turns it captures are safe; who
talks to the engine directly is not.
"""

import json
from pathlib import Path

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.replies import COMPLETIONS, request_json
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.engines.context import find_shortage
from clawrl_trl.gateway.sampling import PLAIN
from clawrl_trl.messages import Json

NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (1, 0),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
}
"""Values of a generation config that leave the distribution as it is."""
PLAIN_FIX = "start vLLM with --generation-config vllm (clawrl does); requests through the gateway are sampled plainly"
PROMPTS = ("The", "a b a b a b a b")
"""The second one repeats itself, so that penalties of repetition show."""
TOP = (20, 5)
"""Numbers of likely tokens to compare; the second when the engine allows no more."""


async def check_generation_config(target: Target) -> Finding:
    """Check the sampling defaults of the model's own file."""
    name = "generation config"
    settings = find_distortions(_read_generation_config(target.model))
    if not settings:
        return Finding(name, "ok", "the model's generation_config.json leaves sampling plain")
    detail = f"the model's generation_config.json sets {', '.join(settings)}, which biases the ratio where it applies"
    return Finding(name, "warn", detail, PLAIN_FIX)


def find_distortions(config: Json) -> list[str]:
    """Find the settings of a generation config that change the distribution, as `name value`."""
    return [
        f"{name} {config[name]}"
        for name, neutral in NEUTRAL.items()
        if config.get(name) is not None and config[name] not in neutral
    ]


def _read_generation_config(model: str) -> Json:
    folder = Path(model)
    if not folder.is_dir():
        from transformers import GenerationConfig

        try:
            config: Json = GenerationConfig.from_pretrained(model).to_diff_dict()
        except OSError:
            return {}
        return config
    file = folder / "generation_config.json"
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError as error:
        raise Skip(f"generation_config.json is not JSON ({error})") from None
    return content if isinstance(content, dict) else {}


async def check_defaults(target: Target) -> Finding:
    """Return whether a request that says nothing about sampling is sampled plainly."""
    name = "sampling defaults"
    gap = max([await _measure_gap(target, prompt) for prompt in PROMPTS])
    if gap < 0.05:
        return Finding(name, "ok", "a request that leaves sampling open is sampled plainly")
    detail = f"a request that leaves sampling open is not sampled plainly (log-probs differ by {gap:.2g})"
    return Finding(name, "warn", detail, PLAIN_FIX)


async def _measure_gap(target: Target, prompt: str) -> float:
    """Measure the largest difference of the likeliest tokens' log-probs between open and plain sampling."""
    request = {"model": target.base, "prompt": prompt, "max_tokens": 1, "seed": 0}
    default = await _request_top_logprobs(target, request)
    plain = await _request_top_logprobs(target, {**request, **PLAIN})
    common = default.keys() & plain.keys()
    if not common:
        return float("inf")
    return max(abs(default[token] - plain[token]) for token in common)


async def _request_top_logprobs(target: Target, body: Json) -> dict[str, float]:
    for count in TOP:
        # More than the engine's --max-logprobs is answered with 400.
        try:
            reply = await request_json(target.engine, "POST", COMPLETIONS, {**body, "logprobs": count})
        except EngineError as error:
            if error.status != 400 or count == TOP[-1]:
                raise
            continue
        rows = (reply["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
        return {token: value for token, value in (rows[0] or {}).items() if value is not None and value > -1e4}
    raise AssertionError("the last count either returns or raises")


async def check_context_length(target: Target) -> Finding:
    """Return whether the settings, the engine and the model agree on how long a conversation may get."""
    name = "context length"
    engine, requested, served = target.engine, target.settings.max_model_len, target.model_card.get("max_model_len")
    if served is None:
        raise Skip("the engine does not say how long a prompt it takes")
    # An engine that cuts a prompt would answer as if it had read all of it.
    if (status := await _send_overlong_prompt(engine, target.base, int(served))) != 400:
        detail = f"a prompt longer than {served} tokens is answered {status}, not refused with 400"
        return Finding(name, "fail", detail, "use an engine that refuses what it can't read whole")
    if requested is not None and requested > served:
        fix = f"set --max_model_len {served}, or start the engine with --max-model-len {requested}"
        return Finding(name, "warn", f"--max_model_len is {requested}, the engine takes {served} tokens", fix)
    return Finding(name, "ok", f"the engine takes {served} tokens and refuses longer prompts")


async def check_room_for_agents(target: Target) -> Finding:
    """Return whether requests of agents fit into the context."""
    name = "room for agents"
    _, served = target.engine, target.model_card.get("max_model_len")
    if served is None:
        raise Skip("the engine does not say how long a prompt it takes")
    if shortage := find_shortage(int(served), target.settings.model_name_or_path):
        return Finding(name, "warn", *shortage)
    return Finding(name, "ok", f"{served} tokens")


async def _send_overlong_prompt(engine: EngineClient, model: str, length: int) -> int:
    """Send a request that is a token too long; returns its status."""
    body = {"model": model, "prompt": [1] * (length + 1), "max_tokens": 1}
    try:
        await request_json(engine, "POST", COMPLETIONS, body)
    except EngineError as error:
        return error.status
    return 200
