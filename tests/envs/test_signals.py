"""Process scores, from the step to the sample: real gateway, ledger, and judge over HTTP; the sums are done again."""

import base64
import json
import math
import random
import socket
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import Rig, ScriptedEngine, fails, hangs_up, running, says
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit import binary
from clawrl_trl.envs.base.actor import GatewayPolicy, ModelReply
from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start
from clawrl_trl.envs.base.message import Action
from clawrl_trl.envs.rollout.episode import Group
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.signals import StepJudge, make_judged_turn
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.errors import UserError
from clawrl_trl.judge.turn import JudgedTurn
from clawrl_trl.ledger import schema
from clawrl_trl.run import RunFolder

STEPS = 3
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Walk:
    """So many steps, some of which have a signal."""

    id: str


class WalkEnv(AgentEnv[Walk]):
    """Episodes of two or three steps with random signals and outcomes, which it writes down."""

    lock = threading.Lock()
    count = 0
    played: dict[str, tuple[float, list[float | None]]] = {}  # noqa: RUF012 - on purpose: one for all

    def __init__(self) -> None:
        super().__init__([Walk("walk")], max_steps=STEPS)

    def begin(self, task: Walk) -> Start:
        with WalkEnv.lock:
            WalkEnv.count += 1
            self.chance = random.Random(WalkEnv.count)
        self.steps = 2 + self.chance.randrange(2)
        self.told: list[float | None] = []
        return Start([{"role": "system", "content": "walk"}, {"role": "user", "content": "go"}])

    def act(self, action: Action) -> Effect:
        self.told.append(self.chance.choice([None, -1.0, -0.5, 0.25, 1.0]))
        return Effect(["good" if self.told[-1] == 1.0 else "bad"], len(self.told) == self.steps, signal=self.told[-1])

    def evaluate(self) -> float:
        outcome = self.chance.choice([-1.0, 0.5, 1.0])
        WalkEnv.played[self.session_id] = outcome, self.told
        return outcome


def rollout(rig: Rig, groups: int = 3, size: int = 4, **options: Any) -> list[Group]:
    policy = GatewayPolicy(rig.url, stream_share=0.0)
    try:
        return list(Rollout(WalkEnv, policy, num_generations=size, parallel_envs=2, **options).play([0] * groups))
    finally:
        policy.close()


def samples(rig: Rig, group: str) -> dict[str, list[schema.Sample]]:
    """The samples of a group's sessions, in the order of the turns; without those of replies that were cut off."""
    by_session: dict[str, list[schema.Sample]] = defaultdict(list)
    query = (
        select(schema.Session.external_id, schema.Sample)
        .join(schema.Turn, schema.Turn.session_id == schema.Session.id)
        .join(schema.Sample, schema.Sample.turn_id == schema.Turn.id)
        .where(schema.Session.group == group, schema.Turn.finish_reason != "abort")
        .order_by(schema.Turn.seq)
    )
    with rig.ledger.reader() as tx:
        for name, sample in tx.execute(query):
            by_session[str(name)].append(sample)
    return by_session


def advantage(sample: schema.Sample) -> float:
    """As the trainer takes it."""
    measure = None if sample.baseline is None or sample.scale is None else (sample.baseline, sample.scale)
    return float(binary([sample.score], None, [measure])[0][0])


def check_group(rig: Rig, group: Group, weight: float, *, stepwise: bool) -> int:
    """Compare what the ledger holds with the definition, worked out anew; returns how many turns there were."""
    episodes = {episode.session_id: WalkEnv.played[episode.session_id] for episode in group.episodes}
    everything = [(s, k, o, signals[k]) for s, (o, signals) in episodes.items() for k in range(len(signals))]
    by_session, count = samples(rig, group.id), 0
    for session, step, outcome, signal in everything:
        rivals = [rival for rival in everything if rival[1] == step] if stepwise else everything
        rival_scores = [rival[3] for rival in rivals if rival[3] is not None]
        usual = sum(rival_scores) / len(rival_scores) if rival_scores else 0.0
        rewards = [o + weight * (usual if s is None else s) for _, _, o, s in rivals]
        reward = outcome + weight * (usual if signal is None else signal)
        if len(rewards) < 2:
            expected = reward
        elif max(rewards) - min(rewards) < 1e-9:
            expected = 0.0
        else:
            expected = (reward - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
        sample = by_session[session][step]
        assert sample.score == pytest.approx(reward) and advantage(sample) == pytest.approx(expected, abs=1e-6)
        count += 1
    assert count == sum(map(len, by_session.values()))
    return count


@pytest.mark.parametrize("stepwise", [False, True])
def test_rewards_and_advantages_are_those_of_the_definition(tmp_path: Path, stepwise: bool) -> None:
    with running(tmp_path / "run") as rig:
        groups = rollout(rig, prm_coef=0.3, stepwise=stepwise)
        counts = [check_group(rig, group, 0.3, stepwise=stepwise) for group in groups]
    assert sum(counts) >= 3 * 4 * 2
    reported = [episode.signals for group in groups for episode in group.episodes]
    assert sum(map(len, reported)) == sum(
        signal is not None for group in groups for e in group.episodes for signal in WalkEnv.played[e.session_id][1]
    )


def test_replies_that_never_arrived_shift_nothing(tmp_path: Path) -> None:
    """One request fails and one breaks off; the latter's turn is captured all the same."""
    engine = ScriptedEngine([says("a"), fails(500, "no"), hangs_up("cut", " off"), says("b")])
    with running(tmp_path / "run", engine=engine, patience_s=0.01) as rig:
        (group,) = rollout(rig, groups=1, prm_coef=1.0, stepwise=True)
        assert sum(turn.finish_reason == "abort" for turn in rig.turns()) == 1
        signals = {episode.session_id: WalkEnv.played[episode.session_id][1] for episode in group.episodes}
        by_session = samples(rig, group.id)
        for episode in group.episodes:
            turns = [sample.turn_id for sample in by_session[episode.session_id]]
            assert [episode.signals.get(turn) for turn in turns] == signals[episode.session_id]


def test_without_a_coefficient_there_are_no_signals(tmp_path: Path) -> None:
    with running(tmp_path / "run") as rig:
        (group,) = rollout(rig, groups=1)
        scores = {sample.score for rows in samples(rig, group.id).values() for sample in rows}
    assert all(episode.signals == {} for episode in group.episodes)
    assert scores == {episode.outcome for episode in group.episodes}


def judge_settings(run: Path, url: str | None = None, **more: Any) -> ServeSettings:
    settings = ServeSettings(run=str(run), judge="llm", judge_url=url, judge_model="prm", **more)
    settings.save()
    return settings


def votes(score: Callable[[str], int]) -> Callable[[Any, int], str]:
    """A judge's server: it scores by what came next."""
    return lambda messages, number: f'{{"score": {score(messages[-1]["content"])}, "hint": null}}'


def test_the_run_s_judge_scores_the_steps(scripted: Any, tmp_path: Path) -> None:
    server = scripted(votes(lambda text: 1 if "\ngood\n" in text else -1))
    judge_settings(tmp_path / "judged", server.base_url, judge_votes=3)
    judge = StepJudge.of_run(tmp_path / "judged")
    assert judge is not None
    with running(tmp_path / "run") as rig:
        (group,) = rollout(rig, groups=1, prm_coef=0.5, judge=judge)
        by_session = samples(rig, group.id)
    judge.close()
    steps = 0
    for episode in group.episodes:
        outcome, signals = WalkEnv.played[episode.session_id]
        expected = [1.0 if signal == 1.0 else -1.0 for signal in signals]
        assert list(episode.signals.values()) == expected
        assert [sample.score for sample in by_session[episode.session_id]] == [
            outcome + 0.5 * score for score in expected
        ]
        steps += len(signals)
    assert len(server.seen) == 3 * steps, "three votes a step"
    prompt = server.seen[0]["body"]["messages"][-1]["content"]
    assert "request from the owner\ngo\n" in prompt and "reply of the assistant\none two three\n" in prompt
    assert "what came next, part 1, from a tool" in prompt


def test_the_judge_of_a_step_sees_the_screens_before_and_after(scripted: Any, tmp_path: Path) -> None:
    server = scripted(lambda messages, number: '{"score": 1, "hint": null}')
    screens = [f"data:image/png;base64,{base64.b64encode(PNG + bytes([number])).decode()}" for number in range(2)]
    shown = [[{"type": "image_url", "image_url": {"url": url}}] for url in screens]
    asked = [{"role": "user", "content": [{"type": "text", "text": "press it"}, *shown[0]]}]
    reply = {"role": "assistant", "content": "click"}
    seen = [{"role": "tool", "content": "clicked"}, {"role": "user", "content": shown[1]}]
    before = {"conversation": json.dumps(asked), "session_id": "s", "tools": "[]"}
    after = {"conversation": json.dumps([*asked, reply, *seen])}
    step = make_judged_turn(ModelReply("click", message=reply, turn_id="t"), before, after)  # type: ignore[arg-type]
    judge = StepJudge(judge_settings(tmp_path, server.base_url, judge_votes=1))
    assert judge.collect_scores({"t": judge.ask(step)}) == {"t": 1.0}
    judge.close()
    parts = server.seen[0]["body"]["messages"][-1]["content"]
    assert [part["image_url"]["url"] for part in parts if part["type"] == "image_url"] == screens


def test_a_judge_that_hangs_costs_its_time_out_and_no_score(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, running(tmp_path / "run") as rig:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        judge = StepJudge(judge_settings(tmp_path / "judged", url, judge_timeout=0.2))
        groups = rollout(rig, groups=2, size=2, prm_coef=0.5, judge=judge)
        outcomes = {episode.outcome for group in groups for episode in group.episodes}
        scores = {s.score for group in groups for rows in samples(rig, group.id).values() for s in rows}
        judge.close()
    assert [episode.signals for group in groups for episode in group.episodes] == [{}] * 4
    assert scores == outcomes, "what was not judged is no score"


def test_a_judge_with_devices_of_its_own_is_found_with_its_key(scripted: Any, tmp_path: Path) -> None:
    server = scripted(votes(lambda text: 1))
    settings = judge_settings(tmp_path, server.base_url, judge_votes=1)
    step = JudgedTurn("t", "s", ({"role": "user", "content": "go"},), None, {"content": "ok"}, (), (), (), 0)
    for announced in (server.base_url, "http://127.0.0.1:9"):
        RunFolder(tmp_path).announce("judge_engine", announced, key="its-key")
        judge = StepJudge(settings)
        assert judge.collect_scores({"t": judge.ask(step)}) == {"t": 1.0}
        judge.close()
    assert [request["headers"].get("authorization") for request in server.seen] == ["Bearer its-key", None]


def test_a_judge_that_is_away_or_undecided_gives_no_score(scripted: Any, tmp_path: Path) -> None:
    away = judge_settings(tmp_path / "away", "http://127.0.0.1:9")
    split = judge_settings(
        tmp_path / "split",
        scripted(lambda messages, number: f'{{"score": {number % 2}, "hint": null}}').base_url,
        judge_votes=2,
    )
    step = JudgedTurn("t", "s", ({"role": "user", "content": "go"},), None, {"content": "ok"}, (), (), (), 0)
    for settings in (away, split):
        judge = StepJudge(settings)
        assert judge.collect_scores({"t": judge.ask(step)}) == {}
        judge.close()


def test_an_own_reward_scores_steps_and_other_judges_leave_it_to_the_world(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(turn):\n    return 0.25 if turn.next_state else None\n")
    for judge in ("rules", "off"):
        ServeSettings(run=str(tmp_path), judge=judge).save()
        assert StepJudge.of_run(tmp_path) is None
    ServeSettings(run=str(tmp_path), custom_rm_path=f"{tmp_path}/mine.py:reward").save()
    judge = StepJudge.of_run(tmp_path)
    assert judge is not None
    with running(tmp_path / "run") as rig:
        (group,) = rollout(rig, groups=1, prm_coef=1.0, judge=judge)
    judge.close()
    assert {score for episode in group.episodes for score in episode.signals.values()} == {0.25}
    ServeSettings(run=str(tmp_path), custom_rm_path=f"{tmp_path}/mine.py:nothing").save()
    with pytest.raises(UserError, match="nothing"):
        StepJudge.of_run(tmp_path)


def test_the_flags_of_practice(tmp_path: Path) -> None:
    PracticeOptions(env="gui", tasks=str(tmp_path), prm_coef=0.5, stepwise=True).save(tmp_path)
    options = PracticeOptions.load(tmp_path)
    assert (options.prm_coef, options.stepwise, options.keep_screenshots) == (0.5, True, False)
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="--prm_coef"):
            PracticeOptions(env="gui", tasks=str(tmp_path), prm_coef=weight)
