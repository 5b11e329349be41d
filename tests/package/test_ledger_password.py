"""The password of a ledger's URL: in no file, on no command line, in no message."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.cli.main import open_ledger
from clawrl_trl.config import serving
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder
from clawrl_trl.serving import attach

PASSWORD = "k9-canary"
URL = f"postgresql+psycopg://clawrl:{PASSWORD}@127.0.0.1:9/chats"
BARE = "postgresql+psycopg://clawrl@127.0.0.1:9/chats"
VARIABLE = "CLAWRL_LEDGER_URL"
NOBODY = "postgresql+psycopg://clawrl@127.0.0.1:9/other"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.parametrize("url", [URL, f"{BARE}?password={PASSWORD}"])
def test_the_run_folder_has_no_password(tmp_path: Path, url: str) -> None:
    ServeSettings(run=str(tmp_path), ledger_url=url).save()
    assert PASSWORD not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert ServeSettings.load(tmp_path).ledger_url == BARE


def test_processes_get_it_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ServeSettings(run=str(tmp_path), ledger_url=URL).save()
    monkeypatch.setenv(VARIABLE, URL)
    assert ServeSettings.load(tmp_path).ledger_url == URL
    assert ServeSettings(ledger_url=NOBODY).ledger_url == NOBODY
    assert ServeSettings().ledger_url == URL


def test_a_run_on_a_file_stays_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ServeSettings(run=str(tmp_path)).save()
    monkeypatch.setenv(VARIABLE, URL)
    assert ServeSettings.load(tmp_path).ledger_url is None


def test_the_command_of_a_trainers_server_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very process that a trainer starts, as `ps` shows it."""
    commands: list[tuple[list[str], str]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, words: list[str], **options: object) -> None:
            commands.append((words, os.environ[VARIABLE]))
            super().__init__([sys.executable, "-c", "raise SystemExit(3)"], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(attach.subprocess, "Popen", Noted)
    with pytest.raises(UserError), attach.attach_or_serve(ServeSettings(run=str(tmp_path), ledger_url=URL)):
        pass
    ((words, environment),) = commands
    assert f"--ledger_url={BARE}" in words and environment == URL
    assert not any(PASSWORD in word for word in words)


def test_a_server_that_cannot_be_reached_is_told_without_it(tmp_path: Path) -> None:
    """A whole process: its command line is the user's, all else is ours."""
    process = subprocess.run(
        [sys.executable, "-m", "clawrl_trl.cli.main", "serve", "--run", str(tmp_path), "--ledger_url", URL],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 2
    output = process.stdout + process.stderr
    assert PASSWORD not in output and "can't be reached" in output and VARIABLE in output
    assert all(PASSWORD not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("url", [f"postgresql://u:{PASSWORD}@h:port/db", f"nosuch://u:{PASSWORD}@h/db"])
def test_an_unusable_url_is_told_without_it(url: str) -> None:
    with pytest.raises(UserError, match="not usable") as refused:
        Ledger.open(url)
    assert PASSWORD not in str(refused.value)


class TestOlderRuns:
    def test_settings_of_the_last_version_are_read_and_move(self, tmp_path: Path) -> None:
        old = {"run": "elsewhere", "served_model_name": "mine", "port": 1234, "ledger_url": URL}
        (tmp_path / "config.json").write_text(json.dumps(old))
        settings = ServeSettings.load(tmp_path)
        assert (settings.served_model_name, settings.port, settings.ledger_url) == ("mine", 1234, URL)
        settings.save()
        assert sorted(path.name for path in tmp_path.iterdir()) == [serving.FILE_NAME]

    def test_a_models_config_is_not_taken_for_settings(self, tmp_path: Path) -> None:
        """A run that trains all weights saves its model into the run folder."""
        saved = ServeSettings(run=str(tmp_path), port=1234)
        saved.save()
        model = tmp_path / "config.json"
        model.write_text(json.dumps({"model_type": "qwen3", "vocab_size": 7}))
        assert ServeSettings.load(tmp_path) == saved
        saved.save()
        assert json.loads(model.read_text())["model_type"] == "qwen3"
        (tmp_path / serving.FILE_NAME).unlink()
        with pytest.raises(UserError, match="does not exist"):
            ServeSettings.load(tmp_path)
        Ledger.open(RunFolder(tmp_path).ledger).close()
        open_ledger(str(tmp_path)).close()
