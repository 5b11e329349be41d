"""Check of a run's own replies: how far the trainer's log-probs are from those that the engine sampled with.

A quantised or bfloat16 engine computes in other numbers than the trainer. Importance weights correct for that up to
their cap; what is beyond it is bounded or left out. Here the newest replies of a run are computed anew, each by the
version that sampled it, as the trainer would.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.logprobs import Row, choose_bound, rate_gaps
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.kinds import is_whole
from clawrl_trl.judge.teacher import is_plainly_sampled
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.pictures import has_pictures
from clawrl_trl.policy_names import name_policy

NAME = "log-probs of the run"
NEWEST = 100
"""Turns that are looked through."""
REPLIES = 6
"""Most replies that are computed."""
MAX_TOKENS = 2048
"""Longest prompt and reply together: the logits of all positions are held at once."""
FACTOR = 2.0
"""Ratio of probabilities beyond which a weight is bounded, the default of `--importance_sampling_cap`."""


async def check_run_logprobs(target: Target) -> list[Finding]:
    """Compare the newest replies of a run with what the trainer computes; nothing without a run or such replies."""
    where = target.settings.ledger_url or target.run.ledger
    if isinstance(where, Path) and not where.exists():
        return []
    replies = await asyncio.to_thread(read_replies, where, target.run.policies)
    if not replies:
        return []
    rows = await asyncio.to_thread(_compute, target, replies)
    finding = rate_gaps(NAME, rows, choose_bound(target), f"transformers' in {target.reference.dtype}")
    share = measure_bounded(rows)
    return [replace(finding, detail=f"{finding.detail}; importance weights of {share:.1%} of them are bounded")]


def read_replies(where: str | Path, policies: Path) -> list[Turn]:
    """Read the newest replies of a ledger that one pass can compute anew, oldest first.

    Args:
        where: File or URL of the ledger.
        policies: Folder of the run's versions.
    """
    ledger = Ledger.open(where, untouched=True)
    try:
        with ledger.reader() as tx:
            newest = turns.recent_main(tx, None, NEWEST)
    finally:
        ledger.close()
    return [turn for turn in newest if _is_comparable(turn, policies)][-REPLIES:]


def measure_bounded(rows: Sequence[Row]) -> float:
    """Share of tokens whose probability the two sides put apart by more than `FACTOR`."""
    gaps = [abs(a - b) for reported, expected in rows for a, b in zip(reported, expected, strict=True)]
    return sum(gap > math.log(FACTOR) for gap in gaps) / len(gaps)


def _is_comparable(turn: Turn, policies: Path) -> bool:
    if not turn.trainable or turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        return False
    # Of a truncated distribution the log-probs are others, and several versions can't be told apart here.
    if has_pictures(turn.messages) or turn.token_versions is not None:
        return False
    if not is_plainly_sampled({**turn.sampling, "temperature": 1}):
        return False
    if not 0 < len(turn.completion_ids) <= MAX_TOKENS - len(turn.prompt_ids):
        return False
    folder = policies / name_policy(turn.policy_version or 0)
    return turn.policy_version == 0 or (folder.is_dir() and not is_whole(folder))


def _compute(target: Target, replies: Sequence[Turn]) -> list[Row]:
    rows: list[Row] = []
    for turn in replies:
        assert turn.prompt_ids is not None and turn.completion_ids is not None and turn.logprobs is not None
        name = name_policy(turn.policy_version) if turn.policy_version else None
        if name is not None:
            target.reference.load_adapter(name, target.run.policies / name)
        temperature = float(turn.sampling.get("temperature") or 1.0)
        prompt, completion = turn.prompt_ids.tolist(), turn.completion_ids.tolist()
        rows.append((turn.logprobs.tolist(), target.reference.logprobs(prompt, completion, temperature, name)))
    return rows
