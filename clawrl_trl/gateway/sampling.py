"""Sampling parameters of a reply, and what of them makes its tokens unfit for training.

Training needs, for each token, the probability of the distribution it was drawn from. Plain sampling at a
temperature that is not next to 0 gives that. Anything that cuts or bends the distribution (truncation, penalties,
grammars) or takes the likeliest token makes the ratio to another policy undefined on the tokens it excluded; such
turns are kept and judged, but marked. What a client leaves open is set here to plain sampling at the run's
temperature, so that an engine's own defaults (vLLM takes a model's `generation_config`) never decide it unseen.
"""

from collections.abc import Mapping

from clawrl_trl.messages import Json

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

LOOP_GUARD = {"max_pattern_size": 16, "min_count": 6}
"""vLLM's `repetition_detection` as it is set for the bundled model, which may answer a question outside of what it was
taught by the same few digits for thousands of tokens: a pattern of up to 16 tokens that stands 6 times in a row ends
the reply."""

GREEDY_BELOW = 0.01
"""Below this temperature engines do not sample at the one they are given: vLLM raises it to this, the embedded engine
takes the likeliest token below 1e-5."""

STOPPED = "stopped_by_client"
"""Stored with how a turn was sampled if its client cut the reply."""

UNCONSTRAINED = "unconstrained"
"""Stored with how a turn was sampled: the grammar it asked for, if the engine applied none."""

_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_BENT_BY = (
    "logit_bias",
    "logits_processors",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "thinking_token_budget",
    "use_beam_search",
)


def complete_parameters(body: Json, temperature: float = 1.0) -> Json:
    """The sampling fields of `PLAIN`, each as the client set it or else plain, at the run's `temperature`."""
    plain = PLAIN | {"temperature": temperature}
    return {name: body[name] if body.get(name) is not None else value for name, value in plain.items()}


def stored_parameters(body: Json, temperature: float = 1.0) -> Json:
    """Return the sampling parameters to store with a turn; the run's `temperature` unless the client set one."""
    return complete_parameters(body, temperature) | {
        "seed": body.get("seed"),
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "stop": body.get("stop"),
        "tool_choice": body.get("tool_choice"),
        "model": body.get("model"),
    }


def requested_grammar(body: Json) -> str | None:
    """Return the field of a request that an engine may turn into a grammar, as vLLM 0.31 does, or `None`.

    Of tools it is a choice that forces a call, and strict ones unless calls are ruled out.
    """
    for name in _GRAMMARS:
        if body.get(name):
            return name
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind != "text":
        return f"response_format {kind}"
    choice, tools = body.get("tool_choice"), body.get("tools") or ()
    if choice == "required" or isinstance(choice, Mapping):
        return "tool_choice forces a tool"
    functions = [tool.get("function") for tool in tools]
    strict = any(isinstance(function, Mapping) and function.get("strict") is True for function in functions)
    return "strict tools" if strict and choice != "none" else None


def find_obstacle(
    body: Json,
    temperature: float = 1.0,
    *,
    sampled_logprobs: bool | None = True,
    constrained: bool | None = None,
) -> str | None:
    """Why tokens sampled this way can't be trained on, or `None` when they can.

    Args:
        body (`Mapping`): The client's request.
        temperature (`float`, defaults to 1): That of requests which set none.
        sampled_logprobs (`bool | None`, defaults to `True`): Whether the engine's log-probs follow the temperature;
            `None` if that is not known.
        constrained (`bool | None`, *optional*): Whether the engine sampled under a grammar; by default nobody knows,
            and what was asked for counts.
    """
    parameters = complete_parameters(body, temperature)
    # At 1 both kinds of log-probs are the same, so an engine that reports raw ones still trains there.
    if not sampled_logprobs and parameters["temperature"] != 1:
        reported = "log-probs reported for temperature 1" if sampled_logprobs is False else "its log-probs unknown yet"
        return f"sampled at temperature {parameters['temperature']}, {reported}"
    if parameters["temperature"] < GREEDY_BELOW:
        return f"greedy: temperature {parameters['temperature']} is not sampled at"
    if parameters["top_p"] < 1 or parameters["top_k"] > 0 or parameters["min_p"] > 0:
        names = (name for name in ("top_p", "top_k", "min_p") if parameters[name] != PLAIN[name])
        return "truncated: " + ", ".join(f"{name} {parameters[name]}" for name in names)
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        if parameters[name] != PLAIN[name]:
            return f"penalised: {name} {parameters[name]}"
    for name in _BENT_BY:
        if body.get(name):
            return f"constrained: {name}"
    grammar = None if constrained is False else requested_grammar(body)
    # vLLM enforces strict tools, others ignore the word; while nobody knows, the turn is not trained on.
    if grammar == "strict tools" and constrained is None:
        return "constrained: strict tools, which this engine may enforce"
    if grammar or constrained:
        grammar = grammar or "by the engine's settings"
        return f"constrained: {grammar}"
    # Its first ids are the prompt's, which nobody sampled.
    if body.get("echo"):
        return "echo: the reply repeats its prompt"
    if (body.get("best_of") or 1) > (body.get("n") or 1):
        return "selected: best_of keeps the likeliest replies"
    return None
