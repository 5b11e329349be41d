"""Is anything set that bends the distribution without anybody asking for it?

A model's `generation_config.json` often carries top_k, top_p or a temperature for nicer chats, and vLLM takes them
as defaults. The gateway fills in plain sampling for what a client leaves open, so turns it captures are safe; who
talks to the engine directly is not.
"""

import json
from pathlib import Path
from typing import Any

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.replies import COMPLETIONS, call
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.engines.context import find_shortage
from clawrl_trl.gateway.sampling import PLAIN

NEUTRAL: dict[str, tuple[Any, ...]] = {
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
KEPT_OUT = "start vLLM with --generation-config vllm (clawrl does); requests through the gateway are sampled plainly"
PROMPTS = ("The", "a b a b a b a b")
TOP = (20, 5)
"""Numbers of likely tokens to compare; the second when the engine allows no more."""


async def generation_config(target: Target) -> Finding:
    """Check the sampling defaults of the model's own file."""
    name = "generation config"
    found = bends(_read(target.model))
    if not found:
        return Finding(name, "ok", "the model's generation_config.json leaves sampling plain")
    detail = f"the model's generation_config.json sets {', '.join(found)}, which biases the ratio where it applies"
    return Finding(name, "warn", detail, KEPT_OUT)


def bends(config: dict[str, Any]) -> list[str]:
    """Settings of a generation config that bend the distribution, as `name value`."""
    return [
        f"{name} {config[name]}"
        for name, neutral in NEUTRAL.items()
        if config.get(name) is not None and config[name] not in neutral
    ]


def _read(model: str) -> dict[str, Any]:
    folder = Path(model)
    if not folder.is_dir():
        from transformers import GenerationConfig

        try:
            found: dict[str, Any] = GenerationConfig.from_pretrained(model).to_diff_dict()
        except OSError:
            return {}
        return found
    file = folder / "generation_config.json"
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError as error:
        raise Skip(f"generation_config.json is not JSON ({error})") from None
    return content if isinstance(content, dict) else {}


async def defaults(target: Target) -> Finding:
    """Return whether a request that says nothing about sampling is sampled plainly."""
    name = "sampling defaults"
    gap = max([await _gap(target, prompt) for prompt in PROMPTS])
    if gap < 0.05:
        return Finding(name, "ok", "a request that leaves sampling open is sampled plainly")
    detail = f"a request that leaves sampling open is not sampled plainly (log-probs differ by {gap:.2g})"
    return Finding(name, "warn", detail, KEPT_OUT)


async def _gap(target: Target, prompt: str) -> float:
    """Largest difference of the likeliest tokens' log-probs between open and plain sampling."""
    asked = {"model": target.base, "prompt": prompt, "max_tokens": 1, "seed": 0}
    opened, plain = await _top(target, asked), await _top(target, {**asked, **PLAIN})
    common = opened.keys() & plain.keys()
    if not common:
        return float("inf")
    return max(abs(opened[one] - plain[one]) for one in common)


async def _top(target: Target, body: dict[str, Any]) -> dict[str, float]:
    for count in TOP:
        try:
            reply = await call(target.engine, "POST", COMPLETIONS, {**body, "logprobs": count})
        except EngineError as error:
            if error.status != 400 or count == TOP[-1]:
                raise
            continue
        rows = (reply["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
        return {token: value for token, value in (rows[0] or {}).items() if value is not None and value > -1e4}
    raise AssertionError("the last count either returns or raises")


async def context_length(target: Target) -> Finding:
    """Return whether the settings, the engine and the model agree on how long a conversation may get."""
    name = "context length"
    engine, wanted, served = target.engine, target.settings.max_model_len, target.card.get("max_model_len")
    if served is None:
        raise Skip("the engine does not say how long a prompt it takes")
    if (answer := await _overlong(engine, target.base, int(served))) != 400:
        detail = f"a prompt longer than {served} tokens is answered {answer}, not refused with 400"
        return Finding(name, "fail", detail, "use an engine that refuses what it can't read whole")
    if wanted is not None and wanted > served:
        fix = f"set --max_model_len {served}, or start the engine with --max-model-len {wanted}"
        return Finding(name, "warn", f"--max_model_len is {wanted}, the engine takes {served} tokens", fix)
    return Finding(name, "ok", f"the engine takes {served} tokens and refuses longer prompts")


async def agents_fit(target: Target) -> Finding:
    """Return whether requests of agents fit into the context."""
    name = "room for agents"
    _, served = target.engine, target.card.get("max_model_len")
    if served is None:
        raise Skip("the engine does not say how long a prompt it takes")
    if shortage := find_shortage(int(served), target.settings.model_name_or_path):
        return Finding(name, "warn", *shortage)
    return Finding(name, "ok", f"{served} tokens")


async def _overlong(engine: EngineClient, model: str, length: int) -> int:
    """The status of a request that is a token too long."""
    body = {"model": model, "prompt": [1] * (length + 1), "max_tokens": 1}
    try:
        await call(engine, "POST", COMPLETIONS, body)
    except EngineError as error:
        return error.status
    return 200
