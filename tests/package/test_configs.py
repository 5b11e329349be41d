"""The configurations in `examples/configs`: each is read by the script, and names what there is."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clawrl_trl.envs.catalogue import BUILTIN_ENVIRONMENTS
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.errors import UserError
from clawrl_trl.trainers import AsyncGRPOConfig

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = sorted(EXAMPLES.glob("configs/*.yaml"))

Launch = Callable[[Path], None]


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("train_script", EXAMPLES / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENV_TYPE", "MODEL_PATH", "MAX_STEPS", "TOOLS_CONFIG", "SWE_BENCH_PATH", "PARALLEL_ENVS"):
        monkeypatch.delenv(name, raising=False)


def read(train: ModuleType, *argv: str) -> tuple[Any, Any]:
    script, config, model, settings = train.parse(list(argv))
    train.check(script, config, model, settings)
    return script, config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_read_and_names_what_there_is(
    train: ModuleType, path: Path, tmp_path: Path, launch_processes: Launch
) -> None:
    launch_processes(path)
    script, _ = read(train, "--config", str(path), "--output_dir", str(tmp_path))
    assert script.env is not None
    assert path.stem.split("_")[0] == script.env


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("configs/*_qwen3_*.yaml")), ids=lambda path: path.stem)
def test_the_references_lengths_reach_engine_and_episodes(
    train: ModuleType, path: Path, tmp_path: Path, launch_processes: Launch
) -> None:
    launch_processes(path)
    script, config, _, settings = train.parse(["--config", str(path), "--output_dir", str(tmp_path)])
    assert settings.max_model_len == 32768 and train.make_practice_options(script, config).max_tokens == 8192


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("configs/*_qwen3_*.yaml")), ids=lambda path: path.stem)
def test_the_references_process_rewards_reach_judge_and_episodes(
    train: ModuleType, path: Path, tmp_path: Path, launch_processes: Launch
) -> None:
    launch_processes(path)
    script, config, _, settings = train.parse(["--config", str(path), "--output_dir", str(tmp_path)])
    practice = train.make_practice_options(script, config)
    assert (practice.prm_coef, practice.stepwise) == (1.0, True)
    judge = (settings.judge, settings.judge_votes, settings.judge_temperature, settings.judge_max_tokens)
    assert judge == ("llm", 3, 0.6, 4096)


def test_the_reason_why_a_plugin_has_no_effect_is_told(train: ModuleType, tmp_path: Path) -> None:
    plugin = ("--rollout_function_path", "examples/custom/rollout.py:rollout", "--output_dir", str(tmp_path))
    with pytest.raises(UserError, match="people's own clients ask"):
        read(train, *plugin)
    with pytest.raises(UserError, match="the environment plays its episodes itself"):
        read(train, "--env", "terminal", *plugin)


def test_defaults_go_with_the_model_and_the_work(train: ModuleType, tmp_path: Path) -> None:
    def read_values(config: AsyncGRPOConfig) -> tuple[float, ...]:
        names = ("learning_rate", "beta", "max_grad_norm", "support_coef", "baseline_window")
        return tuple(getattr(config, name) for name in names)

    def defaults(*argv: str) -> tuple[float, ...]:
        return read_values(train.parse([*argv, "--output_dir", str(tmp_path)])[1])

    terminal = ("--env", "terminal", "--tasks", "terminal")
    assert defaults("--method", "binary") == (3e-3, 0.1, 0.05, 10.0, 0)
    assert defaults("--env", "chat", "--tasks", "student", "--method", "binary") == (3e-3, 0.1, 0.05, 10.0, 0)
    assert defaults("--method", "combine") == (3e-3, 0.1, 0.05, 10.0, 16)
    assert defaults(*terminal) == (2e-3, 0.1, 1.0, 0.0, 0)
    assert defaults("--method", "opd") == (2e-3, 0.0, 0.05, 0.0, 0)
    assert defaults(*terminal, "--method", "opd") == (2e-3, 0.0, 1.0, 0.0, 0)
    assert defaults(*terminal, "--method", "combine") == (2e-3, 0.1, 1.0, 0.0, 0)
    named = ("--method", "binary", "--model_name_or_path", str(tmp_path))
    assert defaults(*named) == (1e-5, 0.01, 1.0, 0.0, 0)
    assert defaults(*named, "--preset", "none") == read_values(AsyncGRPOConfig(output_dir=str(tmp_path)))


def test_a_flag_beats_the_file(train: ModuleType, tmp_path: Path) -> None:
    path = EXAMPLES / "configs" / "toolcall.yaml"
    practice = train.make_practice_options(
        *read(train, "--config", str(path), "--output_dir", str(tmp_path), "--group_size", "3")
    )
    assert practice.group_size == 3 and practice.parallel_envs == 4


def test_the_rollout_knows_how_much_an_update_takes(train: ModuleType, tmp_path: Path) -> None:
    flags = ["--per_device_train_batch_size", "3", "--gradient_accumulation_steps", "4", "--publish_steps", "2"]
    practice = train.make_practice_options(*read(train, "--env", "swe", "--output_dir", str(tmp_path), *flags))
    practice.save(tmp_path)
    assert practice.update_samples == PracticeOptions.load(tmp_path).update_samples == 24


TOOLCALL = ("--env", "toolcall", "--env_options")


@pytest.mark.sandbox
def test_options_reach_the_environment(train: ModuleType, tmp_path: Path) -> None:
    arguments = read(train, *TOOLCALL, '{"max_calls": 3}', "--output_dir", str(tmp_path))
    make_env, _ = train.make_practice_options(*arguments).load_environments("train")
    env = make_env()
    assert env.max_calls == 3
    env.close()


@pytest.mark.parametrize(
    ("given", "says"), [('{"max_cals": 3}', "has no 'max_cals'"), ("[1]", "must be a mapping"), ("{", "is no JSON")]
)
def test_wrong_options_are_refused(train: ModuleType, tmp_path: Path, given: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(train, *TOOLCALL, given, "--output_dir", str(tmp_path))


@pytest.mark.parametrize(
    "flags",
    [
        ("--tasks", "gui"),
        ("--persona", "student", "--env_options", "{}"),
        ("--env", "chat", "--difficulty", "1"),
        ("--env", "chat", "--stepwise", "true"),
        ("--persona", "student", "--max_tokens", "512"),
        ("--env", "terminal", "--interactions", "3"),
        ("--env", "terminal", "--rollout_function_path", "examples/custom/rollout.py:rollout"),
        ("--env", "terminal", "--custom_generate_function_path", "examples/custom/generate.py:generate"),
        ("--rollout_function_path", "examples/custom/rollout.py:rollout"),
        ("--custom_generate_function_path", "examples/custom/generate.py:generate"),
        ("--interactions", "3"),
        ("--eval_problems", "3"),
    ],
    ids=" ".join,
)
def test_a_flag_without_effect_is_refused(train: ModuleType, flags: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no effect here"):
        read(train, *flags, "--output_dir", str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--rewards", "1"), "no flag for --rewards 1"),
        (("student",), "no flag for student"),
        (("--kl_estimator", "k9"), "kl_estimator='k9' is unknown"),
        (("--use_peft", "false", "--beta", "0"), "needs a base to hold to"),
        (("--per_device_train_batch_size", "0"), "per_device_train_batch_size must be at least 1"),
        (("--gradient_accumulation_steps", "0"), "gradient_accumulation_steps must be at least 1"),
        (("--learning_rate", "-1"), "learning_rate can't be negative"),
        (("--learning_rate", "nan"), "learning_rate can't be negative"),
        (("--learning_rate", "fast"), "invalid float value: 'fast'"),
        (("--temperature", "9"), "temperature must be above 0 and at most 2"),
        (("--max_model_len", "-5"), "--max_model_len -5 is out of range"),
        (("--parallel_envs", "0"), "--parallel_envs 0 is out of range"),
        (("--env", "terminal", "--num_generations", "0"), "--num_generations 0 is out of range"),
        (("--env", "terminal", "--num_generations", "many"), "invalid int value: 'many'"),
        (("--env", "terminal", "--episodes", "0"), "--episodes 0 is out of range"),
        (("--persona", "student", "--interactions", "-1"), "--interactions -1 is out of range"),
        (("--perssona", "student"), "did you mean --persona?"),
    ],
    ids=str,
)
def test_wrong_flags_are_told_in_one_line(
    train: ModuleType, flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        train.parse([*flags, "--output_dir", str(tmp_path)])
    assert "\n" not in str(caught.value)


def test_a_variable_that_is_no_number_is_told_in_one_line(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_STEPS", "ten")
    with pytest.raises(UserError, match="MAX_STEPS='ten' is no whole number"):
        train.parse(["--env", "terminal", "--output_dir", str(tmp_path)])


HINTED = ["gui", "swe"]


@pytest.mark.parametrize("method", ["opd", "combine"])
@pytest.mark.parametrize("env", sorted(set(BUILTIN_ENVIRONMENTS) - set(HINTED)))
def test_a_method_with_a_teacher_is_refused_where_practice_has_none(
    train: ModuleType, method: str, env: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="use --method binary") as caught:
        read(train, "--env", env, "--method", method, "--output_dir", str(tmp_path))
    assert "\n" not in str(caught.value) and f"--method {method}" in str(caught.value)


@pytest.mark.parametrize(("method", "needs"), [("opd", ("teacher",)), ("combine", ("score", "teacher"))])
@pytest.mark.parametrize("env", HINTED)
def test_where_there_are_hints_they_are_on(
    train: ModuleType, method: str, needs: tuple[str, ...], env: str, tmp_path: Path
) -> None:
    arguments = read(train, "--env", env, "--method", method, "--output_dir", str(tmp_path))
    practice = train.make_practice_options(*arguments)
    assert practice.hints == needs
    practice.save(tmp_path)
    assert PracticeOptions.load(tmp_path).hints == needs


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--method", "opd", "--env_hints", "false"), "--method opd needs --env_hints"),
        (("--method", "binary", "--env_hints", "true"), "no effect with --method binary"),
        (("--method", "combine", "--hints", "false"), "--hints"),
    ],
    ids=str,
)
def test_hints_that_could_not_work_are_refused(
    train: ModuleType, flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read(train, "--env", "swe", *flags, "--output_dir", str(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_references_variable_names_the_software_tasks(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = EXAMPLES / "tasks" / "swe" / "heldout.jsonl"
    monkeypatch.setenv("SWE_BENCH_PATH", str(tasks))
    assert train.make_practice_options(*read(train, "--env", "swe", "--output_dir", str(tmp_path))).tasks == str(tasks)
