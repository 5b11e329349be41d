"""Chats of a persona with a run's model: `python -m clawrl_trl.envs.runs.persona_worker --run DIR`.

The options are read in `DIR/persona.json`. The worker is a client of the gateway like anyone else and knows nothing of
the ledger. Interactions are played one after another at a person's pace, each a session of its own about a new
problem. Each is put on record in `DIR/interactions.jsonl` when it is over, so the process may be killed at any time: a
second start goes on with the first interaction that is not on record.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.custom import load_callable
from clawrl_trl.envs.base.actor import Generate
from clawrl_trl.envs.chat.persona_file import persona as load_persona
from clawrl_trl.envs.chat.personas import Persona
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.persona_actor import PersonaActor
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.worker import find_gateway, read_served_model, start_worker
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.messages import Json

if TYPE_CHECKING:
    from clawrl_trl.envs.chat.env import ChatEnv

FILE_NAME = "interactions.jsonl"

PersonaRollout = Callable[[Any, Persona, int, int], Iterable[Mapping[str, Any]]]
"""`rollout(client, persona, interactions, seed)`: plays that many interactions through an `openai` client and
yields a mapping for each when it is over, with at least `first_score`. A run that goes on after an interruption
asks for what is left, with another seed."""


def play(
    run: str | Path,
    options: PersonaOptions,
    *,
    persona: Persona | None = None,
    base_url: str | None = None,
    key: str | None = None,
    model: str = "clawrl",
    rollout: PersonaRollout | None = None,
    generate: Generate | None = None,
    progress: Callable[[Mapping[str, Any]], object] | None = None,
) -> list[Json]:
    """Play what is missing of a run's interactions.

    Args:
        run (`str` or `Path`): Run folder; holds the record.
        options ([`PersonaOptions`]): Who plays, how often and how.
        persona ([`Persona`], *optional*): Plays in place of the one that the options name.
        base_url (`str`, *optional*): The gateway; by default the one that the run folder names.
        key (`str`, *optional*): Bearer key of the chat scope.
        model (`str`, *optional*, defaults to `"clawrl"`): Model name to ask for.
        rollout (`Callable`, *optional*): Plays instead of the chat environment, see [`PersonaRollout`].
        generate (`Callable`, *optional*): Makes the requests instead, see [`clawrl_trl.envs.base.actor.Generate`].
        progress (`Callable`, *optional*): Called with each row.

    Returns:
        All rows on record, in the order they were played: `index`, `session_id`, `first_score`, `correct` (of
        the first reply), `scores` and `thumbs` (of each reply), `turns`, `approved`,
        `dropped` (why it was, where replies or the persona stopped), `policy_version` (of the first reply),
        `requests`, `failed`, `ttft_s` (of each streamed reply), `total_s` (of each), `started_at`, `wall_s`.

    Raises:
        UserError: If the gateway can't be found, refuses the key, or stays away.
    """
    record = Interactions(Path(run) / FILE_NAME)
    missing = record.find_missing(options.interactions)
    if not missing:
        return record.rows
    persona = persona or load_persona(options.persona)
    actor = PersonaActor(
        base_url or find_gateway(run, options.patience),
        api_key=key,
        model=model,
        sampling=options.sampling,
        stream_share=options.stream_share,
        seed=options.seed,
        generate=generate,
        patience=options.patience,
    )
    try:
        for row in (
            _play_own_rollout(rollout, actor, persona, missing, options)
            if rollout
            else _play_chats(actor, persona, missing, options)
        ):
            record.append(row)
            if progress is not None:
                progress(row)
    finally:
        actor.close()
    return record.rows


def _play_chats(
    actor: PersonaActor, persona: Persona, indices: Sequence[int], options: PersonaOptions
) -> Iterator[Json]:
    from clawrl_trl.envs.chat.env import MAX_SILENCES, ChatEnv  # torch: only when it is needed

    env = ChatEnv(
        persona, seed=options.seed, max_turns=options.max_turns, think_time=options.think_time, split="train"
    )
    for index in indices:
        env.next_episode = index  # the problem goes with the index, whatever was played before
        if options.think_time > 0:
            # By the index, so that a run that goes on pauses as it would have.
            env.stopped.wait(random.Random(f"pause-{options.seed}-{index}").expovariate(1 / options.think_time))
        yield {"index": index, **_play_session(env, actor, options.max_turns * MAX_SILENCES)}
    env.close()


def _play_session(env: "ChatEnv", actor: PersonaActor, max_steps: int) -> Json:
    """Play one session; returns its row, without the index."""
    requests, failures = actor.requests, actor.failures
    started_at, started = time.time(), time.perf_counter()
    rollout = env.rollout(max_steps, actor)
    steps = [rollout[step] for step in range(len(rollout))]
    actor.rate(int(steps[-1]["next", "thumbs"]))
    answered = [step for step in steps if step["action"].strip()]
    first = answered[0] if answered else None
    version = int(first["policy_version"]) if first is not None else -1
    return {
        "persona": env.persona.name,
        "session_id": env.session_id,
        "first_score": None if first is None else _read_score(first),
        "correct": None if first is None or _read_score(first) is None else bool(first["next", "correct"]),
        "scores": [score for step in answered if not step["approved"] and (score := _read_score(step)) is not None],
        "thumbs": [thumbs for step in answered if (thumbs := int(step["next", "thumbs"]))],
        "turns": int(steps[-1]["next", "turn"]),
        "approved": bool(steps[-1]["next", "approved"]),
        "dropped": steps[-1]["next", "reason"] or None,
        "policy_version": None if version < 0 else version,
        "requests": actor.requests - requests,
        "failed": actor.failures - failures,
        "ttft_s": [round(float(step["ttft_s"]), 4) for step in answered if not step["ttft_s"].isnan()],
        "total_s": [round(float(step["total_s"]), 4) for step in answered],
        "started_at": round(started_at, 3),
        "wall_s": round(time.perf_counter() - started, 3),
    }


def _read_score(step: Any) -> float | None:
    """Read the reward of a step; `None` when the session was dropped in it."""
    reward = float(step["next", "reward"])
    return None if math.isnan(reward) else reward


def _play_own_rollout(
    rollout: PersonaRollout, actor: PersonaActor, persona: Persona, indices: Sequence[int], options: PersonaOptions
) -> Iterator[Json]:
    blank = dict.fromkeys(("session_id", "correct", "policy_version")) | {"requests": 0, "failed": 0}
    # Another seed for what is left, or a run that goes on would pose its first problems again.
    seed = options.seed + 1_000_003 * indices[0]
    rows = rollout(actor.client, persona, len(indices), seed)
    if not isinstance(rows, Iterable):
        raise UserError(f"the rollout function must yield a mapping per interaction, not {type(rows).__name__}.")
    # An own rollout may end early, or never.
    for index, row in zip(indices, rows, strict=False):
        if not isinstance(row, Mapping) or "first_score" not in row:
            raise UserError("the rollout function must yield mappings with a 'first_score'.")
        yield {**blank, **row, "persona": persona.name, "index": index}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m clawrl_trl.envs.runs.persona_worker`."""
    run = start_worker(argv, "clawrl_trl.envs.runs.persona_worker", "A simulated user chats with a run.")
    options = PersonaOptions.load(run)
    rollout = _load(options.rollout_function_path, ("client", "persona", "interactions", "seed"))
    generate = _load(options.custom_generate_function_path, ("client", "model", "messages"))
    played = len(Interactions(run / FILE_NAME).rows)
    with Progress(
        TextColumn(f"{options.persona} chats"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("first reply liked: {task.fields[liked]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("", total=options.interactions, completed=played, liked="-")
        recent: list[float] = []

        def advance(row: Mapping[str, Any]) -> None:
            recent.append(row["first_score"] or 0.0)
            bar.update(task, advance=1, liked=f"{sum(recent[-6:]):.0f} of the last {len(recent[-6:])}")

        play(
            run,
            options,
            key=read_client_key("chat"),
            model=read_served_model(run),
            rollout=rollout,
            generate=generate,
            progress=advance,
        )
    return 0


def _load(spec: str | None, parameters: Sequence[str]) -> Callable[..., Any] | None:
    return load_callable(spec, parameters=parameters) if spec else None


if __name__ == "__main__":
    sys.exit(run_main(main))
