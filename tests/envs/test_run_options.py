"""Options of a run: written into the run folder for the process that plays, private, and read back the same."""

import json
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.runs.persona_options import MAX_TURNS, PersonaOptions
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.practice_run import PracticeRun, SuccessReport
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder

PRACTICE = PracticeOptions(
    env="toolcall",
    tasks="somewhere",
    env_options={"max_calls": 3},
    hints=("score", "teacher"),
    group_size=4,
    episodes=9,
    seed=5,
)


@pytest.mark.parametrize("options", [PRACTICE, PersonaOptions(persona="mia.yaml", sampling={"temperature": 0.5})])
def test_they_come_back_as_they_were(options: PracticeOptions | PersonaOptions, tmp_path: Path) -> None:
    options.save(tmp_path)
    assert type(options).load(tmp_path) == options
    (file,) = tmp_path.iterdir()
    assert file.name in ("practice.json", "persona.json") and file.stat().st_mode & 0o777 == 0o600
    assert file in RunFolder(tmp_path)._own_paths()


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for content in (None, "{", "[]", "{}", '{"env": "gui", "tasks": "x", "prm_coef": "much"}'):
        if content is not None:
            (tmp_path / "practice.json").write_text(content)
        with pytest.raises(UserError, match=r"practice\.json can't be read") as caught:
            PracticeOptions.load(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_file_of_a_later_version_is_read(tmp_path: Path) -> None:
    PRACTICE.save(tmp_path)
    content = json.loads((tmp_path / "practice.json").read_text())
    (tmp_path / "practice.json").write_text(json.dumps({**content, "colour": "blue"}))
    assert PracticeOptions.load(tmp_path) == PRACTICE


def test_messages_of_a_chat_and_groups_of_episodes() -> None:
    assert PersonaOptions().max_turns == MAX_TURNS and PersonaOptions(env_max_steps=5).max_turns == 5
    assert PRACTICE.groups == 3


def test_a_run_of_the_last_version_gets_its_options_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder(tmp_path).make()
    report = SuccessReport(rate=0.25, graded=4, dropped=0, requests=8, failed=0)
    (tmp_path / "evaluation_before.json").write_text(json.dumps(vars(report)))
    (tmp_path / "episodes.jsonl").write_text('{"index": 0, "group": "g", "episodes": [], "settled": {}}\n')
    # A worker that only says with what it was started.
    (tmp_path / "worker_of_a_test.py").write_text(
        "import json, sys\nfrom pathlib import Path\nrun = Path(sys.argv[2])\n"
        "(run / 'words.json').write_text(json.dumps(sys.argv[1:]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(PracticeRun, "module", "worker_of_a_test")
    run = PracticeRun(PRACTICE, ServeSettings(run=str(tmp_path)), "http://127.0.0.1:9/v1")
    with run:
        assert run._process.wait(60) == 0
    assert run.before == report and len(run.read_rows()) == 1
    assert json.loads((tmp_path / "words.json").read_text()) == ["--run", str(tmp_path)]
    assert PracticeOptions.load(tmp_path) == PRACTICE
