"""What the doctor says about a model's files: generation config, chat template."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trl
from doctor_rig import run_one_check
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from clawrl_trl.doctor import template
from clawrl_trl.doctor.command import ENGINE_CHECKS
from clawrl_trl.doctor.finding import Skip
from clawrl_trl.doctor.logprobs import FINE, find_shift, rate_gaps
from clawrl_trl.doctor.sampling import find_distortions
from clawrl_trl.tiny import MODEL_PATH

CHECKS = {check.name: check for check in ENGINE_CHECKS}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the bundled model to spoil."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL_PATH, folder)
    return folder


async def test_a_generation_config_with_top_k_is_warned_of(model: Path) -> None:
    check = CHECKS["generation config"]
    (plain_finding,) = await run_one_check(check, None, model_name_or_path=str(model))
    assert plain_finding.status == "ok"
    file = model / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "top_k": 20, "temperature": 0.6, "top_p": 1.0}))
    (finding,) = await run_one_check(check, None, model_name_or_path=str(model))
    assert finding.status == "warn" and "temperature 0.6, top_k 20" in finding.detail
    assert "--generation-config vllm" in str(finding.fix)
    file.write_text("{")
    (finding,) = await run_one_check(check, None, model_name_or_path=str(model))
    assert finding.status == "skipped"


def test_only_what_bends_is_named() -> None:
    assert (
        find_distortions({"top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0, "do_sample": True})
        == []
    )
    assert find_distortions({"min_p": 0.05, "repetition_penalty": 1.1}) == ["min_p 0.05", "repetition_penalty 1.1"]


DIALOGUES = [template.PLAIN, template.TOOL_CALLS, template.THINKING]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.name)
def test_the_bundled_template_only_appends(dialogue: template.Dialogue) -> None:
    finding = template.compare_turns(AutoTokenizer.from_pretrained(MODEL_PATH), dialogue)
    assert finding.status == "ok" and "share their tokens" in finding.detail


def test_a_template_that_drops_earlier_thinking_is_told() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    finding = template.compare_turns(tokenizer, template.THINKING)
    assert finding.status == "warn" and "share fewer tokens" in finding.detail and "--packing trie" in str(finding.fix)


def test_a_template_that_refuses_is_skipped() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    tokenizer.chat_template = "{{ raise_exception('no tools here') }}"
    with pytest.raises(Skip, match="no tools here"):
        template.compare_turns(tokenizer, template.TOOL_CALLS)


LOGPROBS = st.lists(st.floats(-8, -0.01), min_size=8, max_size=40, unique=True)


@given(LOGPROBS)
def test_a_shift_is_told_from_the_right_order(expected: list[float]) -> None:
    assert rate_gaps("it", [(expected, expected)], FINE, "themselves").status == "ok"
    assert find_shift([(expected, expected)]) is None
    assert find_shift([([*expected[1:], -1.0], expected)] * 3) == "next"
    assert find_shift([([-1.0, *expected[:-1]], expected)] * 3) == "previous"


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_common_prefix(first: list[int], second: list[int]) -> None:
    length = template.count_common(first, second)
    assert first[:length] == second[:length]
    rest: tuple[Any, Any] = (first[length : length + 1], second[length : length + 1])
    assert rest[0] != rest[1] or not all(rest)
