"""An own rollout in place of the persona's: one question and one verdict a session, nothing more.

    accelerate launch examples/train.py --persona student \
        --rollout_function_path examples/custom/rollout.py:one_verdict
"""

import random
from collections.abc import Iterator
from typing import Any

from openai import OpenAI

MODEL = "clawrl"


def one_verdict(client: OpenAI, persona: Any, interactions: int, seed: int) -> Iterator[dict[str, Any]]:
    """Play the interactions of a run.

    Args:
        client (`OpenAI`): A client of the gateway.
        persona (`Persona`): The simulated user: it opens, reacts and scores.
        interactions (`int`): How many sessions to play.
        seed (`int`): Seed of the run.

    Yields:
        `dict`: One row an interaction, with at least `first_score`.
    """
    for index, task in enumerate(persona.tasks(seed, "train", interactions)):
        rng = random.Random(f"one-verdict-{seed}-{index}")
        headers = {"X-Session-Id": f"one-verdict-{seed}-{index}"}
        scores: list[float] = []
        messages: list[Any] = [{"role": "user", "content": persona.opening(task, rng)}]
        for turn in (1, 2):
            completion = client.chat.completions.create(model=MODEL, messages=messages, extra_headers=headers)
            reply = completion.choices[0].message.content or ""
            scores.append(persona.style(task, reply).score)
            messages.append({"role": "assistant", "content": reply})
            messages.append({"role": "user", "content": persona.react(task, reply, turn, rng).text})
        yield {"first_score": scores[0], "session_id": headers["X-Session-Id"], "requests": 2, "failed": 0}
