"""The table of model families, against the chat templates of the models themselves."""

import json
from pathlib import Path

import pytest
import trl

from clawrl_trl.engines.families import FAMILIES, NOT_BY_DEFAULT, UNKNOWN, family_of
from clawrl_trl.tiny import MODEL_PATH

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


@pytest.mark.parametrize(
    ("model_type", "template", "name"),
    [
        ("qwen2", "qwen2_5", "Qwen2.5"),
        ("qwen2_5_vl", "qwen2_5_vl", "Qwen2.5"),
        ("qwen2", "deepseek_r1_distill", "QwQ, R1 on Qwen"),
        ("qwen3", "qwen3", "Qwen3"),
        ("qwen3_moe", "qwen3_instruct_2507", "Qwen3 Instruct"),
        ("qwen3_5", "qwen3_5_think", "Qwen3.5"),
        ("qwen3_vl", "qwen3_vl", "Qwen3-VL"),
        ("llama", "llama3", "Llama 3"),
        ("llama", "llama3_1", "Llama 3"),
        ("llama", "llama3_2", "Llama 3"),
        ("llama", "deepseek_r1_distill", "R1 on Llama"),
        ("glm4_moe", "glm4moe", "GLM 4.5"),
        ("gpt_oss", "gptoss", "gpt-oss"),
        ("gemma4", "gemma4", "Gemma 4"),
        ("phi3", "phi3", "unknown"),
    ],
)
def test_a_model_is_told_by_its_type_and_its_template(
    tmp_path: Path, model_type: str, template: str, name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text())
    assert family_of(str(tmp_path)).name == name


def test_a_template_may_lie_in_the_tokenizers_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert family_of(str(tmp_path)) is UNKNOWN
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ [TOOL_CALLS] }}"}')
    assert family_of(str(tmp_path)).tools == "mistral"


@pytest.mark.parametrize(
    ("template", "closes"), [("qwen3", False), ("qwen3_5_nothink", True), ("qwen3_5_think", False)]
)
def test_thinking_that_is_closed_by_default_is_noticed(tmp_path: Path, template: str, closes: bool) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text())
    assert (family_of(str(tmp_path)).flags == NOT_BY_DEFAULT) == closes


def test_the_bundled_model_has_a_family() -> None:
    family = family_of(str(MODEL_PATH))
    assert (family.tools, family.reasoning, family.flags) == ("hermes", "qwen3", NOT_BY_DEFAULT)


def test_a_row_without_a_mark_stands_after_those_with_one() -> None:
    for place, row in enumerate(FAMILIES):
        if not row.mark:
            assert not any(set(later.model_types) & set(row.model_types) for later in FAMILIES[place + 1 :])
