"""An own reward in place of the judge: short replies are good replies.

accelerate launch examples/train.py --custom_rm_path examples/custom/reward.py:short_replies
"""

from clawrl_trl.judge.turn import JudgedTurn

LIMIT = 40


def short_replies(turn: JudgedTurn) -> float | None:
    """Score a turn by the number of words in its reply.

    Args:
        turn (`JudgedTurn`): The turn with its messages, reply and next state.

    Returns:
        `float` or `None`: 1.0 up to 40 words, -1.0 above, `None` (no sample) for an empty reply.
    """
    words = len(str(turn.response.get("content") or "").split())
    if not words:
        return None
    return 1.0 if words <= LIMIT else -1.0
