"""The tokens at each position of a reply on which policy and teacher are compared.

An engine tells the log-probs of its own most likely tokens, not of tokens it is asked about. So the policy names its
K, the teacher names more than that, and what both named is compared. A slot without an answer stays empty: the loss
counts its token with all the others, whose mass is known on both sides.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.engines.client import PromptLogprobs

WIDEST = 128
"""Log-probs per prompt token that our engines return at most."""
COMMON = 20
"""The same for a vLLM server that was not told otherwise (`--max-logprobs`)."""
FACTOR = 8
"""Tokens the teacher names for each of the policy's. The answer's size grows with it, over the whole prompt."""


def widths(k: int) -> list[int]:
    """Numbers of tokens the teacher may name, the best first, the others for an engine that refuses it.

    Args:
        k: Tokens the policy names, at most `WIDEST`.
    """
    wanted = min(max(FACTOR * k, COMMON), WIDEST)
    return sorted({max(wanted, k), max(COMMON, k), k}, reverse=True)


def candidates(
    policy: Sequence[Mapping[int, float]] | None, teacher: PromptLogprobs, completion: Sequence[int], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The policy's K most likely tokens at each position, and what the teacher thinks of them.

    Args:
        policy: For each position, token id to log-prob under the policy; `None` to let the teacher name them, where
            the policy can't be asked. Any choice of tokens is right, the policy's tells the most.
        teacher: The teacher's scores of the completion, with its own most likely tokens.
        completion: Ids of the sampled tokens, whose log-prob the teacher told in any case.
        k: Tokens per position.

    Returns:
        `(completion, K)` ids, most likely first, -1 where the teacher told nothing; and the teacher's log-probs of
        them, NaN there.
    """
    ids = np.full((len(completion), k), -1, dtype=np.int32)
    logprobs = np.full((len(completion), k), np.nan, dtype=np.float32)
    for position, (token, top) in enumerate(zip(completion, teacher.top, strict=True)):
        known = {**top, token: teacher.logprobs[position]}
        likely = known if policy is None else policy[position]
        ordered = sorted(likely, key=lambda one: (-likely[one], one))
        for slot, one in enumerate(ordered[:k]):
            if one in known:
                ids[position, slot], logprobs[position, slot] = one, known[one]
    return ids, logprobs
