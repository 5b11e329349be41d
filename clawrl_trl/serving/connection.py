"""Lines printed when a run serves: the model, the version it goes on from, and how to connect a client."""

import json
import os
from collections.abc import Mapping
from typing import Any

import httpx

from clawrl_trl.config.api_keys import read_api_key, read_client_key
from clawrl_trl.config.serving import DEFAULT_CONTEXT, ServeSettings
from clawrl_trl.config.serving_arguments import JUDGE_ENCODERS
from clawrl_trl.engines.calls import find_base_name, read_model_names, read_model_roots
from clawrl_trl.engines.context import find_shortage
from clawrl_trl.engines.families import has_chat_template
from clawrl_trl.engines.launch import model_path
from clawrl_trl.run import RunFolder

TIMEOUT_S = 10.0
NO_TEMPLATE = (
    "The model has no chat template, so chats are refused: name a chat (instruct) model, or put a chat_template.jinja "
    "into the model's folder. /v1/completions takes plain prompts."
)


def describe_connection(settings: ServeSettings, base_url: str) -> str:
    """Return what a person pastes into an OpenAI client and into `openclaw.json`, with the engine's context length.

    Args:
        settings (`ServeSettings`): The run's settings.
        base_url (`str`): The gateway's address, with `/v1`.
    """
    card = _pick_first_model(_fetch_json(f"{base_url}/models", read_client_key("chat")))
    context = card.get("max_model_len") or settings.max_model_len or DEFAULT_CONTEXT
    # The variable and not the key itself: these lines go to logs too.
    key = "$CLAWRL_API_KEY" if read_api_key("chat") else "none-needed"
    version = card.get("policy_version")
    resumed = f", going on from policy version {version}" if version else ""
    lines = [f"Serving {describe_model(settings)} at {base_url}{resumed}"]
    lines += ["", "Any OpenAI client:", f'    client = OpenAI(base_url="{base_url}", api_key="{key}")']
    lines += [f'    client.chat.completions.create(model="{settings.model_names[0]}", messages=[...])']
    lines += [
        "",
        "OpenClaw, in openclaw.json:",
        json.dumps(_describe_provider(settings, base_url, key, context), indent=2),
    ]
    if not settings.is_remote and not has_chat_template(model_path(settings)):
        lines += ["", NO_TEMPLATE]
    if shortage := find_shortage(context, settings.model_name_or_path or _remote_url(settings)):
        lines += ["", "{}: {}.".format(*shortage)]
    return "\n".join(lines) + "\n"


def describe_judge(folder: RunFolder) -> list[str]:
    """Return what the run's judge has announced: the line on the exam of `--judge auto`, and what it reads with."""
    announced = folder.read_announced("judge") or {}
    lines = [announced["exam"]] if announced.get("exam") else []
    if announced.get("encoder") in JUDGE_ENCODERS[1:]:  # the first one is installed, and needs no word
        lines.append(f"the embedded judge reads with {announced['encoder']}")
    return lines


def describe_model(settings: ServeSettings) -> str:
    """Describe the served model in words; a remote engine is asked which one it has."""
    if not settings.is_remote:
        return settings.model_name_or_path or "the bundled model"
    models = _fetch_json(
        f"{settings.engine.rstrip('/').removesuffix('/v1')}/v1/models", os.environ.get("CLAWRL_ENGINE_KEY")
    )
    if not read_model_names(models):
        return f"the model of {settings.engine}"
    name = find_base_name(read_model_names(models))
    root = read_model_roots(models).get(name)
    return f"{root} ({name!r} of {settings.engine})" if root and root != name else f"{name!r} of {settings.engine}"


def _describe_provider(settings: ServeSettings, base_url: str, key: str, context: int) -> dict[str, Any]:
    model = {
        "id": settings.model_names[0],
        "name": settings.model_names[0],
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": context,
        "maxTokens": min(8192, context // 4),
    }
    provider = {"baseUrl": base_url, "apiKey": key, "api": "openai-completions", "models": [model]}
    return {"models": {"providers": {"clawrl": provider}}}


def _remote_url(settings: ServeSettings) -> str | None:
    return settings.engine if settings.is_remote else None


def _pick_first_model(models: Mapping[str, Any]) -> Mapping[str, Any]:
    data = models.get("data")
    return data[0] if data else {}


def _fetch_json(url: str, key: str | None) -> Mapping[str, Any]:
    """Fetch the JSON object at an address; empty when nothing usable answers, for all that it serves is a hint."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        # trust_env: a proxy of the environment is for other machines, not for a part of this run.
        content = httpx.get(url, headers=headers, timeout=TIMEOUT_S, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
