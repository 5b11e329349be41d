"""JSON lines end at a line feed alone: what else Unicode takes for the end of a line may stand inside a text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clawrl_trl.cli.imported_file import read_conversations
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit.source import SourceOptions, as_source
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_run import PersonaRun
from clawrl_trl.envs.swe.tasks import read_swe_tasks
from clawrl_trl.envs.terminal.task_folder import load_tasks
from clawrl_trl.envs.toolcall.tasks import read_tool_tasks
from clawrl_trl.json_lines import split_lines

TEXT = "one\u2028two\u2029three\x85four\x0bfive"


def read_samples(path: Path) -> list[str | None]:
    batch = as_source(path, SourceOptions(batch_size=8)).take(0.0)
    return [] if batch is None else [sample.sample_id for sample in batch.samples]


def read_replies(path: Path) -> list[str]:
    return [turn["response"] for conversation in read_conversations(path) for turn in conversation["turns"]]


def read_questions(path: Path) -> list[str]:
    return [task.question for task in read_tool_tasks(path)]


def read_statements(path: Path) -> list[str]:
    return [task.problem_statement for task in read_swe_tasks(path)]


def read_files(path: Path) -> list[str]:
    return [task.files["instruction.md"].decode() for task in load_tasks(path)]


def read_record(path: Path) -> list[str]:
    settings = ServeSettings(run=str(path.parent), model_name_or_path="tiny")
    run = PersonaRun(PersonaOptions(persona="student"), settings, "http://127.0.0.1:1/v1")
    path.rename(path.parent / run.record)
    return [row["text"] for row in run.read_rows()]


SWE = {"problem_statement": TEXT, "test_patch": "", "FAIL_TO_PASS": "[]", "image_name": "x"}
FILES = {"instruction.md": TEXT, "task.toml": "", "tests/test.sh": ""}
READERS: dict[str, tuple[Callable[[Path], list[Any]], str, dict[str, Any]]] = {
    "samples": (
        read_samples,
        "group",
        {"sample_id": TEXT, "prompt_ids": [1], "completion_ids": [2], "logprobs": [-1.0]},
    ),
    "conversations": (read_replies, "session_id", {"turns": [{"prompt": "hello", "response": TEXT}]}),
    "tool calls": (read_questions, "id", {"question": TEXT, "answer": "1"}),
    "repositories": (read_statements, "instance_id", SWE),
    "shell": (read_files, "id", {"files": FILES}),
    "record": (read_record, "id", {"text": TEXT}),
}
"""Of each kind of file: its reader, the field that names a row, and the other fields."""


@pytest.mark.parametrize("name", READERS)
def test_a_row_may_hold_any_character(name: str, tmp_path: Path) -> None:
    read, key, row = READERS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({key: letter, **row}, ensure_ascii=False) + "\n" for letter in "ab"), encoding="utf-8"
    )
    assert read(path) == [TEXT, TEXT]


def test_a_task_of_a_page_may_hold_any_character(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page.html").write_text("<html></html>")
    row = {"id": "a", "page": "page.html", "instruction": TEXT, "checks": ["true"], "oracle": []}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert [task.instruction for task in read_tasks(tmp_path / "rows.jsonl")] == [TEXT]


def test_lines_are_those_of_an_editor() -> None:
    assert split_lines("") == [] and split_lines("\n") == [""]
    assert split_lines("a\n\nb") == split_lines("a\n\nb\n") == ["a", "", "b"]
