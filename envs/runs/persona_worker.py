"""A persona chats with a run's model: `python -m clawrl_trl.envs.runs.persona_worker --run DIR --persona student`.

It is a client of the gateway like anyone else and knows nothing of the ledger. Interactions are played one
after another at a person's pace, each a session of its own about a new problem. Each is put on record in
`DIR/interactions.jsonl` when it is over, so the process may be killed at any time: a second start goes on with
the first interaction that is not on record.
"""

import argparse
import logging
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clawrl_trl.config.serving import ServeSettings, client_key
from clawrl_trl.custom import load_callable
from clawrl_trl.envs.base.actor import POLL_SECONDS, GatewayPolicy, Generate
from clawrl_trl.envs.chat.persona_file import persona as persona_named
from clawrl_trl.envs.chat.personas import PERSONAS, Persona
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.run import RunFolder

if TYPE_CHECKING:
    from clawrl_trl.envs.chat.env import ChatEnv

FILE_NAME = "interactions.jsonl"

Rollout = Callable[[Any, Persona, int, int], Iterable[Mapping[str, Any]]]
"""`rollout(client, persona, interactions, seed)`: plays that many interactions through an `openai` client and
yields a mapping for each when it is over, with at least `first_score`. A run that goes on after an interruption
asks for what is left, with another seed."""


@dataclass(kw_only=True)
class PlaySettings:
    """Settings of a persona's chats.

    Args:
        interactions (`int`, *optional*, defaults to `36`): How many sessions, those on record included.
        seed (`int`, *optional*, defaults to `0`): Seeds problems, wordings and pace.
        max_turns (`int`, *optional*, defaults to `3`): Most messages the persona sends in a session.
        think_time (`float`, *optional*, defaults to `0.8`): Mean seconds between reading and answering.
        stream_share (`float`, *optional*, defaults to `0.5`): Share of the requests that stream.
        patience (`float`, *optional*, defaults to `60.0`): Longest wait for a gateway that went away, seconds.
        sampling (`dict`, *optional*): Sampling parameters of every request.
    """

    interactions: int = 36
    seed: int = 0
    max_turns: int = 3
    think_time: float = 0.8
    stream_share: float = 0.5
    patience: float = 60.0
    sampling: dict[str, Any] = field(default_factory=lambda: {"max_tokens": 256})


def play(
    run: str | Path,
    persona: str | Persona,
    settings: PlaySettings | None = None,
    *,
    base_url: str | None = None,
    key: str | None = None,
    model: str = "clawrl",
    rollout: Rollout | None = None,
    generate: Generate | None = None,
    progress: Callable[[Mapping[str, Any]], object] | None = None,
) -> list[dict[str, Any]]:
    """Play what is missing of a run's interactions.

    Args:
        run (`str` or `Path`): Run folder; holds the record.
        persona (`str` or [`Persona`]): Who plays.
        settings ([`PlaySettings`], *optional*): How.
        base_url (`str`, *optional*): The gateway; by default the one that the run folder names.
        key (`str`, *optional*): Bearer key of the chat scope.
        model (`str`, *optional*, defaults to `"clawrl"`): Model name to ask for.
        rollout (`Callable`, *optional*): Plays instead of the chat environment, see [`Rollout`].
        generate (`Callable`, *optional*): Makes the requests instead, see [`clawrl_trl.envs.base.actor.Generate`].
        progress (`Callable`, *optional*): Called with each row.

    Returns:
        All rows on record, in the order they were played: `index`, `session_id`, `first_score`, `correct` (of
        the first reply), `scores` (of each reply), `turns`, `approved`, `dropped` (why it was, where replies or
        the persona stopped), `policy_version` (of the first reply),
        `requests`, `failed`, `ttft_s` (of each streamed reply), `total_s` (of each), `started_at`, `wall_s`.

    Raises:
        UserError: If the gateway can't be found, refuses the key, or stays away.
    """
    settings = settings or PlaySettings()
    record = Interactions(Path(run) / FILE_NAME)
    missing = record.missing(settings.interactions)
    if not missing:
        return record.rows
    who = persona_named(persona) if isinstance(persona, str) else persona
    actor = GatewayPolicy(
        base_url or find_gateway(run, settings.patience),
        api_key=key,
        model=model,
        sampling=settings.sampling,
        stream_share=settings.stream_share,
        seed=settings.seed,
        generate=generate,
        patience=settings.patience,
    )
    try:
        for row in (
            _custom(rollout, actor, who, missing, settings) if rollout else _chats(actor, who, missing, settings)
        ):
            record.append(row)
            if progress is not None:
                progress(row)
    finally:
        actor.close()
    return record.rows


def _chats(
    actor: GatewayPolicy, persona: Persona, indices: Sequence[int], settings: PlaySettings
) -> Iterator[dict[str, Any]]:
    from clawrl_trl.envs.chat.env import MAX_SILENCES, ChatEnv  # torch: only when it is needed

    env = ChatEnv(
        persona, seed=settings.seed, max_turns=settings.max_turns, think_time=settings.think_time, split="train"
    )
    for index in indices:
        env.next_episode = index
        if settings.think_time > 0:
            env.stopped.wait(random.Random(f"pause-{settings.seed}-{index}").expovariate(1 / settings.think_time))
        yield {"index": index, **_session(env, actor, settings.max_turns * MAX_SILENCES)}
    env.close()


def _session(env: "ChatEnv", actor: GatewayPolicy, max_steps: int) -> dict[str, Any]:
    """Play one session and say how it went."""
    requests, failures = actor.requests, actor.failures
    started_at, started = time.time(), time.perf_counter()
    rollout = env.rollout(max_steps, actor)
    steps = [rollout[step] for step in range(len(rollout))]
    answered = [step for step in steps if step["action"].strip()]
    first = answered[0] if answered else None
    version = int(first["policy_version"]) if first is not None else -1
    return {
        "persona": env.persona.name,
        "session_id": env.session_id,
        "first_score": None if first is None else _score(first),
        "correct": None if first is None or _score(first) is None else bool(first["next", "correct"]),
        "scores": [score for step in answered if not step["approved"] and (score := _score(step)) is not None],
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


def _score(step: Any) -> float | None:
    """The reward of a step; `None` when the session was dropped in it."""
    reward = float(step["next", "reward"])
    return None if math.isnan(reward) else reward


def _custom(
    rollout: Rollout, actor: GatewayPolicy, persona: Persona, indices: Sequence[int], settings: PlaySettings
) -> Iterator[dict[str, Any]]:
    blank = dict.fromkeys(("session_id", "correct", "policy_version")) | {"requests": 0, "failed": 0}
    seed = settings.seed + 1_000_003 * indices[0]
    rows = rollout(actor.client, persona, len(indices), seed)
    if not isinstance(rows, Iterable):
        raise UserError(f"the rollout function must yield a mapping per interaction, not {type(rows).__name__}.")
    for index, row in zip(indices, rows, strict=False):
        if not isinstance(row, Mapping) or "first_score" not in row:
            raise UserError("the rollout function must yield mappings with a 'first_score'.")
        yield {**blank, **row, "persona": persona.name, "index": index}


def find_gateway(run: str | Path, patience: float) -> Callable[[], str | None]:
    """Find the run's gateway; asked anew when it went away, since it may come back on another port."""

    def locate() -> str | None:
        announced = RunFolder(run).announced("gateway")
        return str(announced["base_url"]) if announced else None

    deadline = time.monotonic() + patience
    while locate() is None:
        if time.monotonic() > deadline:
            raise UserError(
                f"{run} is not being served: start it with 'clawrl serve --run {run}', or give --base_url."
            )
        time.sleep(POLL_SECONDS)
    return locate


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m clawrl_trl.envs.runs.persona_worker`."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = _parser().parse_args(argv)
    sampling = {"max_tokens": arguments.max_tokens}
    if arguments.temperature is not None:
        sampling["temperature"] = arguments.temperature
    settings = PlaySettings(
        interactions=arguments.interactions,
        seed=arguments.seed,
        max_turns=arguments.max_turns,
        think_time=arguments.think_time,
        stream_share=arguments.stream_share,
        patience=arguments.patience,
        sampling=sampling,
    )
    rollout = _load(arguments.rollout_function_path, ("client", "persona", "interactions", "seed"))
    generate = _load(arguments.custom_generate_function_path, ("client", "model", "messages"))
    done = len(Interactions(Path(arguments.run) / FILE_NAME).rows)
    with Progress(
        TextColumn(f"{arguments.persona} chats"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("first reply liked: {task.fields[liked]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("", total=settings.interactions, completed=done, liked="-")
        recent: list[float] = []

        def advance(row: Mapping[str, Any]) -> None:
            recent.append(row["first_score"] or 0.0)
            bar.update(task, advance=1, liked=f"{sum(recent[-6:]):.0f} of the last {len(recent[-6:])}")

        play(
            arguments.run,
            arguments.persona,
            settings,
            base_url=arguments.base_url,
            key=client_key("chat"),
            model=arguments.model or _served_model(arguments.run),
            rollout=rollout,
            generate=generate,
            progress=advance,
        )
    return 0


def _load(spec: str | None, parameters: Sequence[str]) -> Callable[..., Any] | None:
    return load_callable(spec, parameters=parameters) if spec else None


def _served_model(run: str) -> str:
    settings = ServeSettings.find(run)
    return "clawrl" if settings is None else settings.model_names[0]


def _parser() -> argparse.ArgumentParser:
    defaults = PlaySettings()
    parser = argparse.ArgumentParser(
        "python -m clawrl_trl.envs.runs.persona_worker", description="A simulated user chats with a run."
    )
    add = parser.add_argument
    add("--run", required=True, help="run folder; interactions.jsonl is written there")
    add("--persona", default="student", help=f"who chats: {', '.join(PERSONAS)} or a YAML file")
    add("--interactions", type=int, default=defaults.interactions, help="sessions to play in all")
    add("--seed", type=int, default=defaults.seed, help="seeds problems, wordings and pace")
    add("--max_turns", type=int, default=defaults.max_turns, help="most messages the persona sends in a session")
    add("--think_time", type=float, default=defaults.think_time, help="mean seconds between reading and answering")
    add("--stream_share", type=float, default=defaults.stream_share, help="share of the requests that stream")
    add("--patience", type=float, default=defaults.patience, help="longest wait for a gateway that went away, seconds")
    add("--base_url", help="gateway; default: the one the run folder names")
    add("--model", help="model name to ask for; default: the served one")
    add("--max_tokens", type=int, default=defaults.sampling["max_tokens"], help="longest reply")
    add("--temperature", type=float, help="sampling temperature; default: the engine's")
    add("--rollout_function_path", help="own rollout(client, persona, interactions, seed): file.py:name")
    add("--custom_generate_function_path", help="own generate(client, model, messages, **sampling): file.py:name")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
