"""Waves of episodes: a configuration that would play what it can't train is refused, with values that would do."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.envs.runs.practice_options import PracticeArguments
from clawrl_trl.envs.runs.wave import Wave
from clawrl_trl.errors import UserError
from clawrl_trl.script import parse

PRACTICE = ["--env", "terminal", "--output_dir", "runs/x", "--model_name_or_path", "some/model"]
WAVES = st.builds(
    lambda groups, actions, group: Wave(groups * group, actions, group),
    *(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16)),
)


def count_trained(turns: int, version_samples: int, max_staleness: int) -> int:
    """Train a wave of version 0, version after version, dropping what is too stale."""
    trained, version = 0, 0
    while trained < turns and version <= max_staleness:
        trained, version = trained + min(version_samples, turns - trained), version + 1
    return trained


@given(WAVES, st.integers(1, 64), st.integers(1, 16), st.integers(0, 8))
def test_what_is_accepted_is_trained_in_full_and_the_remedies_are_accepted(
    wave: Wave, step_samples: int, publish_steps: int, max_staleness: int
) -> None:
    trained = count_trained(wave.turns, step_samples * publish_steps, max_staleness)
    try:
        wave.check(step_samples, publish_steps, max_staleness)
    except UserError as error:
        assert trained < wave.turns and f"would train {trained:,} and drop the rest" in str(error)
        remedies = dict(re.findall(r"--(publish_steps|parallel_envs|env_max_steps) (\d+)", str(error)))
        wave.check(step_samples, int(remedies["publish_steps"]), max_staleness)
        if "parallel_envs" in remedies:
            Wave(int(remedies["parallel_envs"]), wave.actions, wave.group).check(
                step_samples, publish_steps, max_staleness
            )
        if "env_max_steps" in remedies:
            Wave(wave.size, int(remedies["env_max_steps"]), wave.group).check(
                step_samples, publish_steps, max_staleness
            )
    else:
        assert trained == wave.turns


@given(WAVES, st.integers(1, 64), st.integers(1, 8))
def test_found_steps_leave_a_version_for_what_waits_and_are_the_fewest(
    wave: Wave, step_samples: int, max_staleness: int
) -> None:
    steps = wave.find_publish_steps(step_samples, max_staleness)
    samples = step_samples * steps
    assert count_trained(wave.turns + samples, samples, max_staleness) == wave.turns + samples
    fewer = step_samples * (steps - 1)
    assert steps == 1 or count_trained(wave.turns + fewer, fewer, max_staleness) < wave.turns + fewer


def test_a_group_is_under_way_as_a_whole() -> None:
    assert PracticeArguments(parallel_envs=4, group_size=8).make_wave(10) == Wave(8, 10, 8)
    assert PracticeArguments(parallel_envs=20, group_size=8).make_wave(10) == Wave(24, 10, 8)


def test_the_figures_of_the_report_are_refused() -> None:
    # 128 environments of 10 turns, 16 samples a version: 80 of 1,280 turns were trained.
    with pytest.raises(UserError, match=r"1,280 turns, of which 5 versions of 16 .* would train 80 and") as caught:
        parse([*PRACTICE, "--parallel_envs", "128", "--publish_steps", "1"])
    assert "--publish_steps 20 or --parallel_envs 8" in str(caught.value) and "\n" not in str(caught.value)


def test_a_named_model_publishes_as_seldom_as_its_environments_need() -> None:
    _, config, _, settings = parse([*PRACTICE, "--parallel_envs", "128", "--env_max_steps", "5"])
    assert (config.publish_steps, settings.max_running) == (10, 128), "640 turns are four versions of ten steps of 16"
    _, config, _, settings = parse([*PRACTICE, "--parallel_envs", "128", "--max_running", "8", "--max_staleness", "9"])
    assert (config.publish_steps, settings.max_running) == (9, 8)
    _, config, _, settings = parse(PRACTICE)
    assert (config.publish_steps, settings.max_running) == (2, 32)


def test_the_bundled_model_publishes_as_often_as_before() -> None:
    for name in ("terminal", "gui", "swe", "toolcall"):
        _, config, _, _ = parse(["--env", name, "--output_dir", "runs/x"])
        assert (config.publish_steps, config.step_batch_size) == (1, 2)
