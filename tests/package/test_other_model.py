"""A run belongs to the model that made its chats: another one is refused before anything starts."""

import signal
from pathlib import Path

import pytest
from made_up import fill, make_samples

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.attach import attach_or_serve
from clawrl_trl.serving.serve import refuse_other_model, serve
from clawrl_trl.tiny import MODEL_PATH


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the bundled model with a chat."""
    ServeSettings(run=str(tmp_path)).save()
    ledger = Ledger.open(RunFolder(tmp_path).ledger)
    fill(ledger, make_samples(1))
    ledger.close()
    return tmp_path


def test_serving_another_model_is_refused_in_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(UserError, match=r"belongs to the bundled model: .* to Qwen/Qwen3-4B") as error:
        serve(ServeSettings(run=str(run), model_name_or_path="Qwen/Qwen3-4B", engine="http://127.0.0.1:1"))
    assert "\n" not in str(error.value) and "--output_dir" in str(error.value)
    assert ServeSettings.load(run).model_name_or_path is None, "the run keeps its settings"


def test_so_is_attaching_a_trainer_of_another_model(run: Path) -> None:
    RunFolder(run).announce("gateway", "http://127.0.0.1:1")
    with (
        pytest.raises(UserError, match="belongs to the bundled model"),
        attach_or_serve(ServeSettings(run=str(run), model_name_or_path="Qwen/Qwen3-4B")),
    ):
        pass


@pytest.mark.parametrize(
    ("before", "now", "has_turns"),
    [
        ({"model_name_or_path": "Qwen/Qwen3-4B"}, {"model_name_or_path": "/models/Qwen3-4B"}, True),
        ({}, {"model_name_or_path": str(MODEL_PATH)}, True),
        ({}, {"model_name_or_path": "Qwen/Qwen3-4B"}, False),
        ({"engine": "http://127.0.0.1:1"}, {"model_name_or_path": "Qwen/Qwen3-4B"}, True),
    ],
    ids=["a folder that was moved", "the bundled model by its path", "a run without chats", "an engine elsewhere"],
)
def test_what_may_be_the_same_model_goes_on(
    tmp_path: Path, before: dict[str, str], now: dict[str, str], has_turns: bool
) -> None:
    ServeSettings(run=str(tmp_path), **before).save()  # type: ignore[arg-type]
    refuse_other_model(ServeSettings(run=str(tmp_path), **now), has_turns=has_turns)  # type: ignore[arg-type]


def test_settings_that_cannot_be_read_refuse_nothing(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    refuse_other_model(ServeSettings(run=str(tmp_path), model_name_or_path="Qwen/Qwen3-4B"))
