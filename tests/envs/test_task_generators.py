"""The generators of the shipped tasks, as commands."""

import runpy
import sys
from pathlib import Path

import pytest

GENERATORS = ["gui", "swe", "terminal", "toolcall"]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("words", [["--help"], []], ids=["help", "nothing"])
def test_a_generator_says_what_it_takes_and_writes_nothing(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    monkeypatch.delitem(sys.modules, f"recipes.tasks.{name}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"recipes.tasks.{name}", run_name="__main__")
    assert ended.value.code == (0 if words else 2) and not list(tmp_path.iterdir())
    printed = capsys.readouterr()
    assert "FOLDER" in (printed.out if words else printed.err)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_writes_the_shipped_tasks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "tasks")])
    monkeypatch.delitem(sys.modules, f"recipes.tasks.{name}", raising=False)
    runpy.run_module(f"recipes.tasks.{name}", run_name="__main__")
    shipped = Path(__file__).parents[2] / "examples" / "tasks" / name
    made = {path.name: path.read_bytes() for path in (tmp_path / "tasks").iterdir()}
    assert made and made == {file: (shipped / file).read_bytes() for file in made}
