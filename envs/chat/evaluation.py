"""Evaluation of first replies: held-out problems through the gateway, scored by the persona's own rules.

The requests are marked as side turns, so nothing of an evaluation is ever trained on. Problems, wordings and
sampling seeds follow from the seed alone, so that before and after are asked the same.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from clawrl_trl.envs.base.actor import GatewayPolicy, Generate
from clawrl_trl.envs.chat.persona_file import persona as load_persona
from clawrl_trl.envs.chat.personas import Persona, PersonaGone, PersonaTask
from clawrl_trl.errors import UserError

ATTEMPTS = 3
"""Requests made for one problem before it is left out."""
HOLD = 3
"""Sessions in a row whose first reply must be in the wanted style for it to hold."""


@dataclass(frozen=True)
class EvalReport:
    """Result of an evaluation.

    Attributes:
        score (`float`): Share of first replies in the persona's style.
        correct (`float`): Share of first replies that are right in substance.
        n (`int`): Problems that were answered.
        requests (`int`): Requests made.
        failed (`int`): Requests that failed.
        rows (`list[dict]`): One per answered problem: `index`, `question`, `reply`, `score`, `faults`,
            `correct`, `policy_version`.
    """

    score: float
    correct: float
    n: int
    requests: int
    failed: int
    rows: list[dict[str, Any]] = field(repr=False)


def evaluate(
    base_url: str,
    api_key: str | None,
    persona: str | Persona,
    *,
    problems: int = 50,
    seed: int = 0,
    model: str = "clawrl",
    concurrency: int = 32,
    temperature: float | None = None,
    max_tokens: int = 256,
    generate: Generate | None = None,
    progress: Callable[[], object] | None = None,
) -> EvalReport:
    """Score the first replies to held-out problems.

    Args:
        base_url (`str`): The gateway.
        api_key (`str`, *optional*): Bearer key of the chat scope.
        persona (`str` or [`Persona`]): Whose problems and taste.
        problems (`int`, *optional*, defaults to `50`): How many.
        seed (`int`, *optional*, defaults to `0`): Seeds problems, wordings and sampling.
        model (`str`, *optional*, defaults to `"clawrl"`): Model name to ask for.
        concurrency (`int`, *optional*, defaults to `32`): Requests at once; an engine answers them together.
        temperature (`float`, *optional*): Sampling temperature; the engine's default if not given.
        max_tokens (`int`, *optional*, defaults to `256`): Longest reply.
        generate (`Callable`, *optional*): Makes the requests instead, see [`clawrl_trl.envs.base.actor.Generate`].
        progress (`Callable`, *optional*): Called after each problem.

    Raises:
        UserError: If no problem could be answered, or the gateway refuses or stays away.
    """
    simulated_user = load_persona(persona) if isinstance(persona, str) else persona
    sampling = {"max_tokens": max_tokens} | ({} if temperature is None else {"temperature": temperature})
    actor = GatewayPolicy(
        base_url,
        api_key=api_key,
        model=model,
        sampling=sampling,
        stream_share=0.0,
        turn_type="side",
        generate=generate,
    )

    reasons: list[str] = []

    def evaluate_task(indexed_task: tuple[int, PersonaTask]) -> dict[str, Any] | None:
        row = None
        try:
            row = _request_first_reply(actor, simulated_user.session(), *indexed_task, seed=seed)
        except PersonaGone as gone:
            reasons.append(str(gone))
        if progress is not None:
            progress()
        return row

    tasks = simulated_user.tasks(seed, "heldout", problems)
    with ThreadPoolExecutor(concurrency) as pool:
        rows = [row for row in pool.map(evaluate_task, enumerate(tasks)) if row is not None]
    actor.close()
    if not rows:
        why = f"{reasons[0]} (and see the persona's file)" if reasons else f"see the logs of the gateway at {base_url}"
        raise UserError(f"no held-out problem was answered: {why}.")
    return EvalReport(
        score=sum(row["score"] for row in rows) / len(rows),
        correct=sum(row["correct"] for row in rows) / len(rows),
        n=len(rows),
        requests=actor.requests,
        failed=actor.failures,
        rows=rows,
    )


def _request_first_reply(
    actor: GatewayPolicy, persona: Persona, index: int, task: PersonaTask, *, seed: int
) -> dict[str, Any] | None:
    opening = persona.opening(task, random.Random(f"evaluation-{persona.name}-{seed}-{index}"))
    for _ in range(ATTEMPTS):
        reply = actor.reply(
            [{"role": "user", "content": opening}],
            session_id=f"evaluation-{persona.name}-{seed}-{index}",
            seed=1_000_003 * seed + index,
        )
        if reply.failed:
            continue
        style = persona.style(task, reply.text)
        return {
            "index": index,
            "question": task.question,
            "reply": reply.text,
            "score": style.score,
            "faults": list(style.faults),
            "correct": persona.correct(task, reply.text),
            "policy_version": reply.policy_version,
        }
    return None


def interactions_to_hold(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """After how many interactions the first reply was in the wanted style `HOLD` sessions in a row.

    Args:
        rows (`Iterable[Mapping]`): Interactions in order, each with `first_score` (`None` if there was no
            first reply, which breaks a run).

    Returns:
        The number, counted from 1, of the last of the first such sessions, or `None` if it never held.
    """
    streak = 0
    for number, row in enumerate(rows, start=1):
        streak = streak + 1 if row["first_score"] == 1.0 else 0
        if streak == HOLD:
            return number
    return None
