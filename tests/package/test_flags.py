"""Flags of a training script: one meaning each, old names for one release, and none that would be ignored."""

import argparse
import logging
import os
from pathlib import Path

import pytest

from clawrl_trl.config.flags import list_flags
from clawrl_trl.config.idle_flags import IDLE_FLAGS, LOSS_FLAGS
from clawrl_trl.errors import UserError
from clawrl_trl.script import ScriptArguments, parse
from clawrl_trl.trainers import AsyncGRPOConfig, CombineConfig

QUIET = ["--output_dir", "runs/x"]
TERMINAL = ["--env", "terminal", *QUIET]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENV_TYPE", "MODEL_PATH", "MAX_STEPS", "PARALLEL_ENVS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("old", "new", "value"), [("--max_steps", "--env_max_steps", 7), ("--num_generations", "--group_size", 3)]
)
def test_an_old_flag_works_and_names_the_new_one(
    old: str, new: str, value: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    script, config, _, _ = parse([old, str(value), *TERMINAL])
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "clawrl_trl.config.old_flags"]
    assert f"{old} with --env is called {new} now" in warning and "\n" not in warning
    assert getattr(script, new[2:]) == value and config.max_steps == -1
    caplog.clear()
    script, config, _, _ = parse([new, str(value), *TERMINAL])
    assert getattr(script, new[2:]) == value and config.max_steps == -1 and not caplog.records
    file = tmp_path / "run.yaml"
    file.write_text(f"env: terminal\n{old[2:]}: {value}\n")
    script, config, _, _ = parse(["--config", str(file), *QUIET])
    assert getattr(script, new[2:]) == value and config.max_steps == -1 and len(caplog.records) == 1


def test_steps_of_training_and_of_an_episode_are_told_apart(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    script, config, _, _ = parse(["--max_steps", "100", "--env_max_steps", "7", *TERMINAL])
    assert (script.env_max_steps, config.max_steps) == (7, 100)
    script, config, _, _ = parse(["--max_steps", "100", *QUIET])
    assert (script.env_max_steps, config.max_steps) == (None, 100)
    script, config, _, _ = parse(["--persona", "student", "--max_steps", "100", "--env_max_steps", "2", *QUIET])
    assert (script.env_max_steps, config.max_steps) == (2, 100) and not caplog.records
    new, old = tmp_path / "new.yaml", tmp_path / "old.yaml"
    new.write_text("env: terminal\nenv_max_steps: 4\n")
    script, config, _, _ = parse(["--config", str(new), "--max_steps", "100", *QUIET])
    assert (script.env_max_steps, config.max_steps) == (4, 100)
    old.write_text("env: terminal\nmax_steps: 4\n")
    script, config, _, _ = parse(["--config", str(old), "--env_max_steps", "7", *QUIET])
    assert (script.env_max_steps, config.max_steps) == (7, -1), "a file of the last version means what it meant"


def test_variables_of_an_environment_are_defaults_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_STEPS", "9")
    monkeypatch.setenv("PARALLEL_ENVS", "2")
    assert parse(["--persona", "student", *QUIET])[0].env_max_steps is None
    assert parse(["--env", "chat", *QUIET])[0].env_max_steps == 9
    script, config, _, _ = parse(TERMINAL)
    assert (script.env_max_steps, script.parallel_envs, config.max_steps) == (9, 2, -1)
    assert parse(["--max_steps", "3", *TERMINAL])[0].env_max_steps == 3
    monkeypatch.setenv("ENV_TYPE", "terminal")
    assert parse(QUIET)[0].env == "terminal"
    monkeypatch.setenv("PARALLEL_ENVS", "two")
    with pytest.raises(UserError, match="PARALLEL_ENVS='two' is no whole number"):
        parse(QUIET)


@pytest.mark.parametrize("key", ["env_vars", "env"])
def test_a_file_sets_variables_before_they_are_read(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_A_TEST", "old")
    file = tmp_path / "run.yaml"
    file.write_text(f"{key}: {{OF_A_TEST: 5, MODEL_PATH: some/model, ENV_TYPE: terminal, MAX_STEPS: 6}}\n")
    for name in ("MODEL_PATH", "ENV_TYPE", "MAX_STEPS"):
        monkeypatch.setenv(name, "")
    script, _, model, _ = parse(["--config", str(file), *QUIET])
    assert os.environ["OF_A_TEST"] == "5" and model.model_name_or_path == "some/model" and script.preset == "named"
    assert (script.env, script.env_max_steps) == ("terminal", 6)
    warnings = [record.getMessage() for record in caplog.records if record.name == "clawrl_trl.config.old_flags"]
    assert len(warnings) == (key == "env") and all("env_vars" in warning for warning in warnings)


def test_variables_on_the_command_line_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", "old")
    parse(["--env_vars", '{"OF_A_TEST": "new"}', *QUIET])
    assert os.environ["OF_A_TEST"] == "new"
    with pytest.raises(UserError, match="--env_vars is no JSON"):
        parse(["--env_vars", "OF_A_TEST=new", *QUIET])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--use_vllm", "true"], "is named by --engine"),
        (["--num_generations", "4"], "--group_size"),
        (["--env", "terminal", "--num_generations", "4", "--group_size", "4"], "--group_size"),
        (["--reward_weights", "1.0"], "one score"),
        (["--sync_ref_model"], "base model"),
        (["--eval_strategy", "steps"], "evaluates nothing"),
        (["--dataloader_num_workers", "2"], "none is loaded ahead"),
        (["--no_shuffle_dataset"], "none is loaded ahead"),
        (["--max_completion_length", "99"], "--loss_type dr_grpo"),
        (["--method", "binary", "--opd_clip", "1"], "not for --method binary"),
        (["--env_max_steps", "4"], "--max_steps for training"),
        (["--persona", "student", "--group_size", "4"], "--env other than chat"),
        (["--persona", "student", "--parallel_envs", "9"], "--env other than chat"),
        (["--env_hints", "true"], "--env other than chat"),
    ],
    ids=" ".join,
)
def test_a_flag_without_effect_is_refused_with_the_reason(flags: list[str], reason: str) -> None:
    with pytest.raises(UserError, match="has no effect here: ") as caught:
        parse([*flags, *QUIET])
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_flag_of_a_file_without_effect_is_refused_unless_it_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("use_vllm: false\neval_strategy: 'no'\n")
    parse(["--config", str(file), *QUIET])
    file.write_text("top_p: 0.9\n")
    with pytest.raises(UserError, match="--top_p has no effect here: the trainer generates nothing"):
        parse(["--config", str(file), *QUIET])


def test_flags_of_a_loss_go_with_it() -> None:
    assert parse(["--loss_type", "dr_grpo", "--max_completion_length", "99", *QUIET])[1].max_completion_length == 99
    assert parse(["--loss_type", "sapo", "--sapo_temperature_neg", "1.5", *QUIET])[1].sapo_temperature_neg == 1.5


def test_what_is_refused_is_a_flag_of_trl_and_none_of_ours() -> None:
    refused = {*IDLE_FLAGS, *LOSS_FLAGS}
    assert len(refused) == len(IDLE_FLAGS) + len(LOSS_FLAGS) and refused <= set(list_flags([AsyncGRPOConfig]))
    ours = {*list_flags([ScriptArguments]), *AsyncGRPOConfig.__annotations__}
    assert refused & ours == {"num_train_epochs"}, "which a source with a length has"


def test_no_flag_of_trls_own_vllm_is_accepted(tmp_path: Path) -> None:
    flags = {name for name in list_flags([AsyncGRPOConfig]) if "vllm" in name}
    ours = {"vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"}
    assert ours <= flags and flags - ours <= set(IDLE_FLAGS)
    with pytest.raises(ValueError, match="a second vLLM"):
        AsyncGRPOConfig(output_dir=str(tmp_path), use_vllm=True)


def test_help_shows_what_has_an_effect_and_the_defaults_that_apply(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 4711\n")
    with pytest.raises(SystemExit) as ended:
        parse(["--config", str(file), "--help", *QUIET])
    page = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and "(default: 4711)" in page and "--config FILE" in page
    assert "Learning rate" not in page or "0.003" in page, "the preset's"
    flags = {word.strip(",[]") for word in page.split() if word.strip("[").startswith("--")}
    assert {"--env_max_steps", "--group_size", "--env_vars", "--max_steps", "--opd_top_k"} <= flags
    assert not {f"--{name}" for name in IDLE_FLAGS} & {flag for flag in flags if f"{flag} {flag[2:].upper()}" in page}


def test_the_command_line_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, args: list[str] | None = None, *further: object) -> object:
        seen.append(args)
        return original(self, args, *further)  # type: ignore[arg-type]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    parse(["--method", "binary", *QUIET])
    assert [words for words in seen if words] == [["--method", "binary", *QUIET]]


def test_an_abbreviation_is_read_like_the_flag() -> None:
    script, config, _, _ = parse(["--meth", "opd", "--bet", "0.5", *QUIET])
    assert script.method == "opd" and config.beta == 0.5 and type(config).__name__ == "OPDConfig"
    assert issubclass(CombineConfig, type(config)), "the parser knows the flags of all by those of combine"


def test_a_warning_is_logged_by_the_first_process_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("RANK", "1")
    parse(["--max_steps", "3", *TERMINAL])
    assert not [record for record in caplog.records if record.name == "clawrl_trl.config.old_flags"]


def test_a_revision_that_the_engine_would_not_serve_is_refused(tmp_path: Path) -> None:
    named = ["--model_name_or_path", "someone/model", *QUIET]
    with pytest.raises(UserError, match=r"another revision of someone/model.*hf download someone/model --revision v2"):
        parse(["--model_revision", "v2", *named])
    with pytest.raises(UserError, match="another revision"):
        parse(["--model_init_kwargs", '{"revision": "v2"}', *named])
    parse(["--model_revision", "main", *named])
    parse(["--model_revision", "v2", "--engine", "http://127.0.0.1:8000", *named])
    parse(["--model_revision", "v2", "--model_name_or_path", str(tmp_path), *QUIET])
