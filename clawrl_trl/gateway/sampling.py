"""How a reply was sampled, and whether that leaves its tokens trainable.

Training needs, for each token, the probability of the distribution it was drawn from. Plain sampling at a
temperature that is not next to 0 gives that. Anything that cuts or bends the distribution (truncation, penalties,
grammars) or takes the likeliest token makes the ratio to another policy undefined on the tokens it excluded; such
turns are kept and judged, but marked. What a client leaves open is set here to plain sampling at the run's
temperature, so that an engine's own defaults (vLLM takes a model's `generation_config`) never decide it unseen.
"""

from collections.abc import Mapping
from typing import Any

PLAIN: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Plain sampling: the distribution as the model gives it."""

GREEDY_BELOW = 0.01
"""Below this temperature engines do not sample at the one they are given: vLLM raises it to this, the embedded engine
takes the likeliest token below 1e-5."""

_BENT_BY = (
    "logit_bias",
    "logits_processors",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "min_tokens",
    "thinking_token_budget",
    "use_beam_search",
)


def completed(body: Mapping[str, Any], temperature: float = 1.0) -> dict[str, Any]:
    """The sampling fields of `PLAIN`, each as the client set it or else plain, at the run's `temperature`."""
    plain = PLAIN | {"temperature": temperature}
    return {name: body[name] if body.get(name) is not None else value for name, value in plain.items()}


def record(body: Mapping[str, Any], temperature: float = 1.0) -> dict[str, Any]:
    """What is stored with the turn about how it was sampled, at the run's `temperature` unless the client set one."""
    return completed(body, temperature) | {
        "seed": body.get("seed"),
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "stop": body.get("stop"),
        "tool_choice": body.get("tool_choice"),
        "model": body.get("model"),
    }


def obstacle(body: Mapping[str, Any], temperature: float = 1.0, *, sampled_logprobs: bool | None = True) -> str | None:
    """Why tokens sampled this way can't be trained on, or `None` when they can.

    Args:
        body (`Mapping`): The client's request.
        temperature (`float`, defaults to 1): That of requests which set none.
        sampled_logprobs (`bool | None`, defaults to `True`): Whether the engine's log-probs follow the temperature;
            `None` if that is not known.
    """
    used = completed(body, temperature)
    if not sampled_logprobs and used["temperature"] != 1:
        reported = "log-probs reported for temperature 1" if sampled_logprobs is False else "its log-probs unknown yet"
        return f"sampled at temperature {used['temperature']}, {reported}"
    if used["temperature"] < GREEDY_BELOW:
        return f"greedy: temperature {used['temperature']} is not sampled at"
    if used["top_p"] < 1 or used["top_k"] > 0 or used["min_p"] > 0:
        cut = ", ".join(f"{name} {used[name]}" for name in ("top_p", "top_k", "min_p") if used[name] != PLAIN[name])
        return f"truncated: {cut}"
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        if used[name] != PLAIN[name]:
            return f"penalised: {name} {used[name]}"
    for name in _BENT_BY:
        if body.get(name):
            return f"constrained: {name}"
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind != "text":
        return f"constrained: response_format {kind}"
    functions = [tool.get("function") for tool in body.get("tools") or ()]
    if any(isinstance(function, Mapping) and function.get("strict") is True for function in functions):
        return "constrained: strict tools"
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        return "constrained: tool_choice forces a tool"
    if body.get("echo"):
        return "echo: the reply repeats its prompt"
    if (body.get("best_of") or 1) > (body.get("n") or 1):
        return "selected: best_of keeps the likeliest replies"
    return None
