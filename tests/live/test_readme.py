"""The README's examples, as they stand, against the bundled model: they run, and the answers are right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from live_run import LiveRun

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live"), pytest.mark.timeout(300)]

README = (Path(__file__).parents[2] / "README.md").read_text()
PRINTED_HOST = "http://127.0.0.1:30000"
OUTSIDE = ("How many are 3 times 4?", "How many are 7 times 8?", "What is 12 + 30?", "Count to ten.", "¿Qué tal?")


def examples(language: str, holds: str) -> list[str]:
    return [block for block in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holds in block]


def test_the_clients_example_is_answered_rightly(live: LiveRun) -> None:
    """Sampled at the bundled model's own temperature; the question is one that it solved 10 times of 10."""
    (code,) = examples("python", "base_url")
    code = code.replace(PRINTED_HOST, live.base_url.removesuffix("/v1"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b50\b", done.stdout), done.stdout


def test_the_feedback_example_is_taken(live: LiveRun) -> None:
    with live.client() as client:
        reply = client.chat.completions.create(model="clawrl", messages=[{"role": "user", "content": "Hi!"}])
    (command,) = examples("bash", "/v1/feedback")
    host = live.base_url.removesuffix("/v1").removeprefix("http://")
    command = command.replace("localhost:30000", host).replace("<completion id>", reply.id)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout).get("error") is None, done.stdout


def test_the_subclass_example_can_be_defined() -> None:
    (block,) = examples("python", "class Cautious")
    names: dict[str, object] = {}
    exec(block, names)
    assert "Cautious" in names


@pytest.mark.parametrize("question", OUTSIDE)
def test_a_question_outside_of_what_the_model_knows_costs_no_endless_reply(live: LiveRun, question: str) -> None:
    with live.client() as client:
        messages = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model="clawrl", messages=messages, n=8, seed=7)  # type: ignore[arg-type]
    assert reply.usage is not None and reply.usage.completion_tokens < 8 * 400
    assert {choice.finish_reason for choice in reply.choices} <= {"stop", "length"}
