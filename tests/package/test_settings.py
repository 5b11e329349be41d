"""Settings: environment names, refusals, and the page that documents them."""

import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.config.api_keys import KEY_ENVIRONMENT, read_api_key, read_client_key
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.config.serving_arguments import ENVIRONMENT
from clawrl_trl.doctor.command import parse_arguments
from clawrl_trl.errors import UserError
from clawrl_trl.serving.attach import _make_flags
from clawrl_trl.serving.serve import check_bind

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (*ENVIRONMENT.values(), *KEY_ENVIRONMENT.values()):
        for name in names:
            monkeypatch.delenv(name, raising=False)


def test_the_references_variables_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "31234")
    monkeypatch.setenv("MODEL_PATH", "/models/mine")
    monkeypatch.setenv("PRM_M", "5")
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    settings = ServeSettings()
    assert (settings.port, settings.model_name_or_path, settings.judge_votes) == (31234, "/models/mine", 5)
    assert read_api_key("chat") == "secret"
    assert ServeSettings(port=1).port == 1


def test_a_bad_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "high")
    with pytest.raises(UserError, match="PORT='high'"):
        ServeSettings()


@pytest.mark.parametrize("wrong", [{"port": 70000}, {"judge": "coin"}, {"engine": "sglang"}, {"dtype": "int8"}])
def test_unusable_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ServeSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", -5),
        ("max_model_len", 0),
        ("max_running", 0),
        ("max_waiting", -1),
        ("max_body_mb", 0),
        ("keep_policies", -1),
        ("max_staleness", -1),
        ("session_timeout", 0.0),
        ("engine_timeout", float("nan")),
        ("judge_votes", 0),
        ("judge_majority", 1.5),
        ("judge_workers", 0),
        ("judge_temperature", -0.1),
        ("judge_temperature", float("inf")),
        ("judge_timeout", -1.0),
        ("temperature", 9.0),
    ],
)
def test_a_number_out_of_range_is_refused_by_the_name_of_its_flag(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"--{name} {value} is out of range: use a value") as caught:
        ServeSettings(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("serve", "--prot", "3"), "There is no flag for --prot 3: did you mean --port?"),
        (("serve", "--port", "high"), "invalid int value: 'high'"),
        (("serve", "--max_model_len", "-5"), "--max_model_len -5 is out of range"),
        (("serve", "--temperature", "9"), "--temperature 9.0 is out of range"),
        (("serve", "--judge", "llm", "extra"), "There is no flag for extra"),
        (("doctor", "--enginee", "vllm"), "did you mean --engine?"),
    ],
    ids=" ".join,
)
def test_wrong_flags_of_the_command_are_told_in_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and says in line


def test_settings_survive_the_run_folder(tmp_path: Path) -> None:
    settings = ServeSettings(run=str(tmp_path), port=0, judge_votes=7)
    settings.save()
    assert ServeSettings.load(tmp_path) == settings


def test_the_doctor_examines_the_settings_of_a_run(tmp_path: Path) -> None:
    ServeSettings(run=str(tmp_path), judge_votes=7).save()
    settings, as_json = parse_arguments(["--run", str(tmp_path), "--json"])
    assert (settings.run, settings.judge_votes, as_json) == (str(tmp_path), 7, True)
    with pytest.raises(UserError, match="holds no run"):
        parse_arguments(["--run", str(tmp_path / "none")])


def test_an_open_bind_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="CLAWRL_API_KEY"):
        check_bind(ServeSettings(host="0.0.0.0"))
    monkeypatch.setenv("CLAWRL_API_KEY", "secret")
    check_bind(ServeSettings(host="0.0.0.0"))


def test_the_page_names_every_variable() -> None:
    names = {name for group in (*ENVIRONMENT.values(), *KEY_ENVIRONMENT.values()) for name in group}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_flags_default_to_the_settings_own_values() -> None:
    from transformers import HfArgumentParser

    (parsed,) = HfArgumentParser(ServeSettings).parse_args_into_dataclasses([])
    assert parsed == ServeSettings()
    assert parsed.hints is True


@pytest.mark.parametrize("further", ["--enforce-eager", "--quantization bitsandbytes --seed=1", "-x", "", None])
def test_a_trainer_starts_serving_with_the_very_settings_it_was_given(further: str | None) -> None:
    from transformers import HfArgumentParser

    settings = ServeSettings(vllm_args=further, hints=False, judge_majority=0.25, model_name_or_path="a b")
    (parsed,) = HfArgumentParser(ServeSettings).parse_args_into_dataclasses(_make_flags(settings))
    assert parsed == settings


@pytest.mark.parametrize(("keys", "presented"), [("one", "one"), ("one, two", "one"), (" ,two", "two"), ("", None)])
def test_our_clients_present_one_of_several_keys(
    monkeypatch: pytest.MonkeyPatch, keys: str, presented: str | None
) -> None:
    monkeypatch.setenv("CLAWRL_FEEDBACK_KEY", keys)
    assert read_client_key("feedback") == presented
