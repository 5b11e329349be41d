"""A call that went through and did not bring what was asked loses its approval, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_helpers import judged_turn

from clawrl_trl.judge import rules
from clawrl_trl.judge.classifier.reader import Reader
from clawrl_trl.judge.classifier.result_reader import (
    BEGINNING,
    ENCODER,
    ENDING,
    LEAST_SUCCESS,
    arrange_texts,
    measure_success,
)
from clawrl_trl.judge.tools.results import ToolResult
from recipes.judge import train
from recipes.judge.results import WRITERS, load_results, split_case


def test_a_long_result_is_read_by_its_beginning_and_its_end() -> None:
    result = ToolResult(" a" * 1000 + "the end", "exec", '{"command": "make"}')
    request, call, text = arrange_texts("build it", result)
    assert (request, call) == ("build it", 'exec {"command": "make"}')
    assert text.startswith("a a") and text.endswith("the end") and len(text) == BEGINNING + ENDING + 3
    assert arrange_texts("", ToolResult(" short ")) == ("", "", "short")
    assert arrange_texts("", ToolResult("ok", "write", "text " * 1000))[1].startswith("write text text")


def case(label: int, *results: str) -> dict[str, Any]:
    calls = [{"name": "exec", "arguments": {"command": f"step {number}"}} for number, _ in enumerate(results)]
    return {"request": "all of it", "calls": calls, "results": list(results), "label": label}


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (case(-1, "done"), ["done"]),
        (case(1, "done", "sent"), ["done", "sent"]),
        # Which of them failed isn't said.
        (case(-1, "done", "sent"), []),
        (case(0, "done", "sent"), []),
    ],
)
def test_of_parallel_results_only_successes_are_known_one_by_one(row: dict[str, Any], texts: list[str]) -> None:
    examples = list(split_case(row))
    assert [example.message for example in examples] == texts
    assert all(example.label == row["label"] for example in examples)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_has_all_three_outcomes(writer: str) -> None:
    labels = [example.label for example in load_results(writer)]
    assert len(labels) >= 150 and all(labels.count(label) >= 0.1 * len(labels) for label in (-1, 0, 1))


LAMP = ToolResult("light.kitchen turned on", "lights", '{"entity": "light.kitchen"}')
TASK = "Fix the crash in the importer when the file has an empty last line, and add a test for it."
STEPS = [
    ToolResult(
        "File created successfully at: /repo/tests/test_empty.py", "Write", '{"file_path": "tests/test_empty.py"}'
    ),
    ToolResult("..      [100%]\n2 passed in 0.11s", "Bash", '{"command": "pytest -q tests/test_empty.py"}'),
    ToolResult(
        "[main 3f2a1bc] Skip empty rows\n 2 files changed, 14 insertions(+)", "Bash", '{"command": "git commit -a"}'
    ),
    ToolResult("Successfully installed pandas-2.2.0", "Bash", '{"command": "pip install pandas"}'),
    ToolResult("Successfully wrote 412 bytes to tests/test_empty.py", "write", '{"path": "tests/test_empty.py"}'),
]


def test_the_same_result_is_a_success_of_one_request_and_none_of_another() -> None:
    wanted = measure_success("Turn on the kitchen lamp", LAMP)
    assert wanted >= LEAST_SUCCESS and wanted > measure_success("Turn on the lamp in the study", LAMP) + 0.2


@pytest.mark.parametrize("step", STEPS)
def test_an_ordinary_step_of_a_long_task_keeps_its_approval(step: ToolResult) -> None:
    assert measure_success(TASK, step) >= LEAST_SUCCESS


@pytest.mark.parametrize(
    ("brought", "said", "score", "by"),
    [
        (0.9, "", 1, "tool results"),
        (0.1, "", None, "tool results"),
        # The owner's word counts where a result does not.
        (0.1, "That's exactly what I wanted, thank you!", 1, "words"),
        (0.1, "That's the wrong lamp.", -1, "words"),
    ],
)
def test_a_doubted_result_leaves_it_to_the_owner(
    monkeypatch: pytest.MonkeyPatch, brought: float, said: str, score: int | None, by: str
) -> None:
    monkeypatch.setattr(rules, "measure_success", lambda request, result: brought)
    state = [
        ("tool", {"role": "tool", "content": LAMP.text}),
        *([("owner", {"role": "user", "content": said})] * bool(said)),
    ]
    judgement = rules.RulesJudge().decide(judged_turn(state, request="Turn on the lamp in the study"))
    assert (judgement.score, judgement.detail["by"]) == (score, by)


def test_a_failure_needs_no_reader_and_an_empty_result_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(request: str, result: ToolResult) -> float:
        asked.append(result.text)
        return 0.9

    monkeypatch.setattr(rules, "measure_success", measure)
    failed = ("tool", {"role": "tool", "content": "Command exited with code 1"})
    assert rules.RulesJudge().decide(judged_turn([failed])).score == -1 and asked == []
    done = [("tool", {"role": "tool", "content": text}) for text in ("", "2 passed in 0.11s")]
    assert rules.RulesJudge().decide(judged_turn(done)).score == 1 and asked == ["2 passed in 0.11s"]


def test_the_reader_reads_what_the_recipe_trained(tmp_path: Path) -> None:
    # Longer than a message may be: the 160 tokens must be those of both.
    rows = [replace(example, message=f"{example.message} {'row ' * 120}") for example in load_results("web")[:4]]
    network = train.fit(rows, encoder=ENCODER)
    network.save(tmp_path / "results.safetensors", temperature=1.0)
    read = Reader(replace(ENCODER, classifier=tmp_path / "results.safetensors"))
    np.testing.assert_allclose(
        np.stack([read(*row.texts) for row in rows]), train.compute_logits(network, rows), atol=0.02
    )
