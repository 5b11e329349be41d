"""Options of a run: written into the run folder for the process that plays, private, and read back the same."""

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.runs.options import check_declared_ranges
from clawrl_trl.envs.runs.persona_options import MAX_TURNS, PersonaOptions
from clawrl_trl.envs.runs.practice_options import PracticeArguments, PracticeOptions
from clawrl_trl.envs.runs.practice_run import PracticeRun, SuccessReport
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder

ROOT = Path(__file__).parents[2]
MOST_PLACES = 3
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


def find_practice_modules() -> Iterator[Path]:
    """The modules that a practice run's options pass through: `envs/runs`, and who imports its options."""
    for path in [*(ROOT / "envs/runs").glob("*.py"), *(ROOT / "clawrl_trl").rglob("*.py"), ROOT / "examples/train.py"]:
        source = path.read_text()
        of_options = path.parent.name == "runs" or "practice_options" in source or "ScriptArguments" in source
        if of_options and not path.name.startswith("persona_"):
            yield path


def list_spelled_names(path: Path) -> set[str]:
    """Names that a module spells as a variable, an attribute, a keyword, a parameter or a whole string."""
    spelled = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.arg(arg=name):
                spelled.add(name)
            case ast.Constant(value=str(text)):
                spelled.add(text.removeprefix("--"))
    return spelled


def test_a_practice_option_stands_in_at_most_three_places() -> None:
    """An option is a field of `PracticeArguments`; a place is a module that declares, checks, refuses or reads it.

    A module counts when it spells the name at all, even where the word means something else. The persona's modules
    read shared options for another kind of run; `config/old_flags.py` has names of the last version; and a parameter
    that a callee happens to call the same (of `Rollout`, say) is the callee's own. None of these counts.
    """
    modules = {path: list_spelled_names(path) for path in find_practice_modules()}
    assert {"parse.py", "train.py", "practice_run.py", "practice_worker.py"} <= {path.name for path in modules}
    for option in fields(PracticeArguments):
        places = sorted(path.name for path, spelled in modules.items() if option.name in spelled)
        assert 1 <= len(places) <= MOST_PLACES, f"{option.name}: {places}"


@pytest.mark.parametrize(
    ("flag", "value", "usable"),
    [
        ("max_tokens", 0, "at least 1"),
        ("parallel_envs", -1, "at least 1"),
        ("difficulty", 4, "1 to 3"),
        ("difficulty", 0, "1 to 3"),
        ("eval_problems", 0, "at least 1"),
    ],
)
def test_a_value_out_of_the_declared_range_is_one_line(flag: str, value: int, usable: str) -> None:
    with pytest.raises(UserError) as caught:
        check_declared_ranges(PracticeArguments(**{flag: value}))
    assert str(caught.value) == f"--{flag} {value} is out of range: use a value {usable}."


def test_evaluations_and_episodes_sample_alike() -> None:
    assert PracticeOptions(env="gui", tasks="x", max_tokens=9).sampling == {"max_tokens": 9}
