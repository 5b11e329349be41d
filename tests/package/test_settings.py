"""Settings: environment names, refusals, and the page that documents them."""

from pathlib import Path

import pytest

from clawrl_trl.attach import _flags
from clawrl_trl.errors import UserError
from clawrl_trl.serve import check_bind
from clawrl_trl.settings import ENVIRONMENT, KEY_ENVIRONMENT, ServeSettings, api_key, client_key

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
    assert api_key("chat") == "secret"
    assert ServeSettings(port=1).port == 1


def test_a_bad_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "high")
    with pytest.raises(UserError, match="PORT='high'"):
        ServeSettings()


@pytest.mark.parametrize("wrong", [{"port": 70000}, {"judge": "coin"}, {"engine": "sglang"}, {"dtype": "int8"}])
def test_unusable_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ServeSettings(**wrong)  # type: ignore[arg-type]


def test_settings_survive_the_run_folder(tmp_path: Path) -> None:
    settings = ServeSettings(run=str(tmp_path), port=0, judge_votes=7)
    settings.save()
    assert ServeSettings.load(tmp_path) == settings


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
    (parsed,) = HfArgumentParser(ServeSettings).parse_args_into_dataclasses(_flags(settings))
    assert parsed == settings


@pytest.mark.parametrize(("given", "presented"), [("one", "one"), ("one, two", "one"), (" ,two", "two"), ("", None)])
def test_our_clients_present_one_of_several_keys(
    monkeypatch: pytest.MonkeyPatch, given: str, presented: str | None
) -> None:
    monkeypatch.setenv("CLAWRL_FEEDBACK_KEY", given)
    assert client_key("feedback") == presented
