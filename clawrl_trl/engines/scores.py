"""Scores of given tokens under a model: how they are asked for, and how the answer is read.

A vLLM server of ours answers on a route of its own (`vllm.scoring`) with packed arrays of the scored positions alone.
Any other engine is asked in vLLM's dialect for the log-probs of a whole prompt, as JSON with each token's text: at
16,384 tokens and 64 candidates 70 MiB where the arrays take less than one. Both answers are read into the same type.
Reading is strict: an answer that doesn't cover what was asked is an error, never a partial result.
"""

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.engines.calls import EngineCall
from clawrl_trl.engines.errors import EngineError
from clawrl_trl.messages import Json

SCORES_PATH = "/v1/scores"
"""Where a vLLM server of ours scores tokens; other engines have no such route."""

FLOATS, INTEGERS = np.dtype("<f4"), np.dtype("<i4")
"""Log-probs and token ids in a packed answer, little-endian."""


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of given tokens under a model, at temperature 1.

    Attributes:
        logprobs (`list[float]`): Log-prob of each scored token, exactly as many as were asked about.
        top (`list[dict[int, float]]`): For each of them the `top_k` most likely tokens at that position, token
            id to log-prob; empty dicts when `top_k` was 0.
    """

    logprobs: list[float]
    top: list[dict[int, float]]


def make_packed_call(context: Sequence[int], scored: Sequence[int], model: str, top_k: int) -> EngineCall:
    """Make the call that scores `scored` after `context` on a server of ours.

    Raises:
        ValueError: If there is no context, nothing to score, or `top_k` is negative.
    """
    prompt = _join(context, scored, top_k)
    return EngineCall("POST", SCORES_PATH, {"model": model, "prompt": prompt, "start": len(context), "top_k": top_k})


def make_plain_call(context: Sequence[int], scored: Sequence[int], model: str, top_k: int) -> EngineCall:
    """Make the same call in vLLM's dialect, generating as little as that allows.

    Raises:
        ValueError: If there is no context, nothing to score, or `top_k` is negative.
    """
    body = {
        "model": model,
        "prompt": _join(context, scored, top_k),
        # vLLM generates at least one token; its text is thrown away.
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": top_k,
    }
    return EngineCall("POST", "/v1/completions", body)


def _join(context: Sequence[int], scored: Sequence[int], top_k: int) -> list[int]:
    if not context:
        raise ValueError("scoring needs at least one token of context: the first token of a prompt has no log-prob")
    if not scored:
        raise ValueError("there are no tokens to score")
    if top_k < 0:
        raise ValueError(f"top_k must be 0 or more, not {top_k}")
    return [*map(int, context), *map(int, scored)]


def is_without_route(error: EngineError) -> bool:
    """Return whether a packed call failed because the engine has no route for it; its lack of a model is a 404 too."""
    return error.status in (404, 405) and error.body.get("param") != "model"


def pack_scores(
    logprobs: NDArray[np.float32], top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float32]
) -> dict[str, str | int]:
    """Pack scores into an answer.

    Args:
        logprobs (`NDArray[np.float32]`): Log-prob of each scored token, shape `(scored,)`.
        top_ids (`NDArray[np.int32]`): The most likely tokens at each position, shape `(scored, top_k)`.
        top_logprobs (`NDArray[np.float32]`): Their log-probs, same shape.
    """
    return {
        "scored": len(logprobs),
        "top_k": top_ids.shape[1],
        "logprobs": _encode(logprobs, FLOATS),
        "top_ids": _encode(top_ids, INTEGERS),
        "top_logprobs": _encode(top_logprobs, FLOATS),
    }


def _encode(values: NDArray[Any], kind: "np.dtype[Any]") -> str:
    return base64.b64encode(values.astype(kind, copy=False).tobytes()).decode()


def read_packed(reply: Json, scored: Sequence[int], top_k: int) -> PromptLogprobs:
    """Read the answer to a packed call.

    Raises:
        EngineError: If not every scored token has a finite log-prob, or the counts differ.
    """
    try:
        logprobs = _decode(reply["logprobs"], FLOATS)
        ids = _decode(reply["top_ids"], INTEGERS).reshape(len(scored), top_k)
        values = _decode(reply["top_logprobs"], FLOATS).reshape(len(scored), top_k)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise EngineError(502, f"the engine's scores can't be read: {error}") from None
    if len(logprobs) != len(scored):
        raise EngineError(502, f"{len(scored)} tokens were sent to be scored, {len(logprobs)} were")
    if not np.isfinite(logprobs).all():
        position = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        raise EngineError(502, _describe_hole(position, scored[position]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return PromptLogprobs(logprobs.tolist(), [dict(zip(*row, strict=True)) for row in rows])


def _decode(text: str, kind: "np.dtype[Any]") -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)


def _describe_hole(position: int, token: int) -> str:
    return f"the log-prob of scored token {position} (id {token}) is not finite"


def read_plain(reply: Json, context: int, scored: Sequence[int], top_k: int) -> PromptLogprobs:
    """Read the answer to a plain call; `context` is the number of tokens before the scored ones.

    Raises:
        EngineError: If not every scored token has a finite log-prob, or the counts differ.
    """
    entries = _prompt_entries(reply)
    if len(entries) != context + len(scored):
        raise EngineError(502, f"{context + len(scored)} prompt tokens were sent, {len(entries)} were scored")
    logprobs: list[float] = []
    top: list[dict[int, float]] = []
    for position, (token, entry) in enumerate(zip(scored, entries[context:], strict=True)):
        try:
            row = {int(candidate): float(value["logprob"]) for candidate, value in entry.items()}
            ranks = {int(candidate): value.get("rank") or 0 for candidate, value in entry.items()}
            logprob = row[int(token)]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EngineError(502, f"no log-prob came back for scored token {position} (id {token})") from None
        if not math.isfinite(logprob):
            raise EngineError(502, _describe_hole(position, token))
        logprobs.append(logprob)
        # The prompt's own token comes back too, whatever its rank.
        top.append({candidate: value for candidate, value in row.items() if 0 < ranks[candidate] <= top_k})
    return PromptLogprobs(logprobs, top)


def _prompt_entries(reply: Json) -> list[Any]:
    choices = reply.get("choices") or [{}]
    # vLLM puts them into a completion's choice, but beside the choices of a chat.
    entries = choices[0].get("prompt_logprobs") or reply.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise EngineError(502, "the engine sent no prompt_logprobs")
    if entries and isinstance(entries[0], list):
        return entries[0]
    return entries
