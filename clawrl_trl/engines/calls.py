"""The engine's calls as data: what each sends, and how its answer is read.

Both clients, the asynchronous and the synchronous, send these; here is what they have in common. Reading is
strict: an answer that doesn't cover what was asked is an error, never a partial result.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from clawrl_trl.engines.errors import EngineError, error_of
from clawrl_trl.engines.kinds import Serving
from clawrl_trl.messages import Json
from clawrl_trl.policy_names import BASE_MODEL, parse_policy_name

IN_PLACE_MODEL = "policy"
"""The name under which a vLLM server of ours serves the full model in place, whichever version that is."""

EMBEDDED = "clawrl-trl"
"""Whom the embedded engine names as the owner of its models."""

POLICY_PATH = "/v1/policy"
"""Where a vLLM server of ours is told to exchange its model in place; other engines have no such route."""

VERSIONS_HEADER = "x-policy-versions"
"""Asks such a server to note which policy version samples which tokens."""

UNKNOWN_VERSION = -1
"""Noted for tokens that no policy version sampled: an adapter on weights it was not made for."""


@dataclass(frozen=True)
class EngineCall:
    """One request to the engine."""

    method: str
    path: str
    body: Mapping[str, object] | None = None


def load_call(name: str, path: str | Path) -> EngineCall:
    """Load a policy folder under a name."""
    return EngineCall("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(Path(path).absolute())})


def exchange_call(name: str, path: str | Path | None) -> EngineCall:
    """Put a whole model in the place of the one that is served; without a folder, the one the engine began with."""
    folder = None if path is None else str(Path(path).absolute())
    return EngineCall("POST", POLICY_PATH, {"name": name, "folder": folder})


def unload_call(name: str) -> EngineCall:
    """Unload what has a name."""
    return EngineCall("POST", "/v1/unload_lora_adapter", {"lora_name": name})


def rename_reasoning(messages: Iterable[Mapping[str, Any]]) -> list[Json]:
    """Copy messages, with earlier thinking under vLLM's name for it too, the only one that vLLM reads."""
    return [
        {**message, "reasoning": message["reasoning_content"]}
        if message.get("reasoning_content") and not message.get("reasoning")
        else dict(message)
        for message in messages
    ]


def is_already_loaded(error: EngineError) -> bool:
    """Return whether the engine refused to load a name because it has it."""
    # vLLM has no code for it, only the sentence.
    return error.status == 400 and "already" in error.message.lower()


def read_model_names(reply: Mapping[str, Any]) -> list[str]:
    """List the names in an answer of `/v1/models`."""
    return [str(model["id"]) for model in reply.get("data", [])]


def find_base_name(names: Iterable[str]) -> str:
    """Return the name of the base model among an engine's: `base`, else the first that names no policy."""
    bases = [name for name in names if name != IN_PLACE_MODEL and parse_policy_name(name) is None]
    return BASE_MODEL if BASE_MODEL in bases or not bases else bases[0]


def read_limit(models: Json, name: str) -> int | None:
    """Read a limit that an answer of `/v1/models` states; `None` if it states none.

    Args:
        models (`Json`): The answer.
        name (`str`): `"max_model_len"`, the context in tokens, or the embedded engine's `"max_prompt_chars"`, the
            characters beyond which no prompt can fit it.
    """
    for model in models.get("data") or ():
        limit = model.get(name)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def read_model_roots(reply: Mapping[str, Any]) -> dict[str, str | None]:
    """Map each name in the answer of `/v1/models` to what it was loaded from; `None` where the engine doesn't say."""
    return {str(model["id"]): model.get("root") for model in reply.get("data", [])}


def loaded_from(root: str | None, folder: str | Path) -> bool:
    """Return whether what an engine has loaded from `root` is this folder's."""
    # Resolved: a run folder may be reached over a link, or have been named relatively.
    return root is not None and Path(root).resolve() == Path(folder).resolve()


def check_root(name: str, folder: str | Path, models: Json) -> None:
    """Make sure that a name which the engine has already means this folder, and not another run's of the same name.

    Raises:
        EngineError: 409 if it means another one.
    """
    root = read_model_roots(models).get(name)
    if root is not None and not loaded_from(root, folder):
        raise EngineError(
            409, f"this engine has {name} of another run ({root}): unload it there, or restart the engine"
        )


def read_serving(in_place: Json | None, models: Json) -> Serving:
    """Return how an engine serves policies, from what it says.

    Args:
        in_place (`Json`, *optional*): Its answer on `POLICY_PATH`; `None` if it has no such route.
        models (`Json`): Its answer on `/v1/models`.
    """
    if in_place is not None:
        return Serving("in place", int(in_place["version"]))
    # Only a server of ours answers on `POLICY_PATH`; of the others a plain vLLM can't take a whole model.
    owners = {model.get("owned_by") for model in models.get("data", [])}
    return Serving("not" if "vllm" in owners else "by name", grammars=owners != {EMBEDDED})


def decode_reply(response: httpx.Response) -> Json:
    """Decode the JSON of a success.

    Raises:
        EngineError: If the answer is not a success.
    """
    if not response.is_success:
        raise error_of(response)
    if not response.content:
        return {}
    try:
        value = json.loads(response.content)
    except ValueError:
        # vLLM answers adapter calls with a plain sentence.
        return {"message": response.text}
    return value if isinstance(value, dict) else {"value": value}


def encode(body: Mapping[str, object]) -> bytes:
    """Encode a JSON body.

    Raises:
        ValueError: If it holds NaN or an infinity, which JSON can't write.
    """
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
