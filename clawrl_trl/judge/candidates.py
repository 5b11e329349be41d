"""The tokens at each position of a reply on which policy and teacher are compared.

An engine returns the log-probs of its own most likely tokens, not of tokens that it is asked about. So the policy
names its K, the teacher names more than that, and what both named is compared. A slot without an answer stays empty:
the loss counts its token with the tail, whose mass is known on both sides.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.engines.client import PromptLogprobs

MAX_PROMPT_LOGPROBS = 128
"""Most log-probs per prompt token that an engine started by a run returns."""
VLLM_MAX_LOGPROBS = 20
"""vLLM's default for the same (`--max-logprobs`)."""
TEACHER_FACTOR = 8
"""Tokens that the teacher names for each of the policy's. The answer's size grows with it, over the whole prompt."""


def list_widths(k: int) -> list[int]:
    """Numbers of tokens to ask the teacher for, the largest first; the others are for an engine that refuses it.

    Args:
        k: Tokens the policy names, at most `MAX_PROMPT_LOGPROBS`.
    """
    widest = min(max(TEACHER_FACTOR * k, VLLM_MAX_LOGPROBS), MAX_PROMPT_LOGPROBS)
    return sorted({max(widest, k), max(VLLM_MAX_LOGPROBS, k), k}, reverse=True)


def align_candidates(
    policy: Sequence[Mapping[int, float]] | None, teacher: PromptLogprobs, completion: Sequence[int], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The policy's K most likely tokens at each position, with the teacher's log-probs of them.

    Args:
        policy: For each position, token id to log-prob under the policy; `None` to let the teacher name them, where
            the policy can't be asked. Any choice of tokens is right, the policy's tells the most.
        teacher: The teacher's scores of the completion, with its own most likely tokens.
        completion: Ids of the sampled tokens, whose log-prob the teacher returned in any case.
        k: Tokens per position.

    Returns:
        `(completion, K)` ids, most likely first, -1 where the teacher named none; and the teacher's log-probs of
        them, NaN there.
    """
    ids = np.full((len(completion), k), -1, dtype=np.int32)
    logprobs = np.full((len(completion), k), np.nan, dtype=np.float32)
    for position, (token, top) in enumerate(zip(completion, teacher.top, strict=True)):
        scored = {**top, token: teacher.logprobs[position]}
        likely = scored if policy is None else policy[position]
        # Equal log-probs are ordered by id: teaching a turn again fills the same slots.
        ordered = sorted(likely, key=lambda candidate: (-likely[candidate], candidate))
        for slot, candidate in enumerate(ordered[:k]):
            if candidate in scored:
                ids[position, slot], logprobs[position, slot] = candidate, scored[candidate]
    return ids, logprobs
