"""Model families, in one table: how vLLM is to read what each of them writes.

A family is told by its `model_type` and, where one type covers models that speak differently, by a piece of their
chat template. Replies of a model that no row fits come back as plain text: nothing is guessed. The embedded engine
needs no table, because it reads the reply's format off the template itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError

from clawrl_trl.engines.chat_template import make_environment

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Where a model keeps its chat template, newest habit first."""


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        name (`str`): What people call the family.
        model_types (`tuple[str, ...]`): Its `model_type`s.
        tools (`str`, *optional*): vLLM's tool-call parser.
        reasoning (`str`, *optional*): vLLM's reasoning parser.
        mark (`str`, defaults to `""`): A piece of the chat template that only this family has.
        flags (`tuple[str, ...]`, defaults to none): Further flags of vLLM's server.
        note (`str`, defaults to `""`): What one has to know about its template.
    """

    name: str
    model_types: tuple[str, ...]
    tools: str | None = None
    reasoning: str | None = None
    mark: str = ""
    flags: tuple[str, ...] = ()
    note: str = ""

    def arguments(self) -> list[str]:
        """Arguments that the family adds to vLLM's command line."""
        tools = ["--enable-auto-tool-choice", "--tool-call-parser", self.tools] if self.tools else []
        reasoning = ["--reasoning-parser", self.reasoning] if self.reasoning else []
        return [*tools, *reasoning, *self.flags]


THINKS = "<think>"
NOT_BY_DEFAULT = ("--default-chat-template-kwargs", '{"enable_thinking": false}')
"""For templates that close the thinking unless they are asked to think: vLLM's parsers assume the opposite."""

FAMILIES = (
    Family(
        "Qwen3-Coder", ("qwen3", "qwen3_moe", "qwen3_next"), "qwen3_coder", None, mark="<function=",
        note="Writes calls as XML, unlike the chat models of the same type.",
    ),
    Family(
        "Qwen3", ("qwen3", "qwen3_moe", "qwen3_next"), "hermes", "qwen3", mark=THINKS,
        note="A turn's thinking is left out of later prompts, so a later prompt does not extend an earlier one.",
    ),
    Family("Qwen3 Instruct", ("qwen3", "qwen3_moe", "qwen3_next"), "hermes"),
    Family("Qwen3.5", ("qwen3_5", "qwen3_5_moe"), "qwen3_coder", "qwen3"),
    Family("Qwen3-VL Thinking", ("qwen3_vl", "qwen3_vl_moe"), "hermes", "qwen3", mark=THINKS),
    Family("Qwen3-VL", ("qwen3_vl", "qwen3_vl_moe"), "hermes"),
    Family(
        "QwQ, R1 on Qwen", ("qwen2",), "hermes", "deepseek_r1", mark=THINKS,
        note="The prompt opens the thinking already.",
    ),
    Family("Qwen2.5", ("qwen2", "qwen2_moe", "qwen2_5_vl"), "hermes"),
    Family("R1 on Llama", ("llama",), None, "deepseek_r1", mark=THINKS),
    Family(
        "Llama 3", ("llama",), "llama3_json", mark="<|start_header_id|>",
        note="One call per reply; its template refuses a message with several.",
    ),
    Family("Hermes on Llama", ("llama",), "hermes", mark="<tool_call>"),
    Family("Llama 4", ("llama4",), "llama4_pythonic"),
    Family(
        "Mistral", ("mistral", "mistral3", "mixtral"), "mistral", mark="[TOOL_CALLS]",
        note="Its template refuses call ids that are not nine letters and digits, so clients must not rewrite them.",
    ),
    Family("DeepSeek V3", ("deepseek_v3",), "deepseek_v3", "deepseek_r1"),
    Family("GLM 4.5", ("glm4_moe",), "glm45", "glm45"),
    Family("gpt-oss", ("gpt_oss",), "openai", "openai_gptoss"),
    Family("Gemma 4", ("gemma4",), "gemma4", "gemma4"),
    Family("Olmo 3", ("olmo3",), "olmo3", "olmo3"),
)  # fmt: skip
"""The first row that fits counts, so a row with a mark stands before the one without."""

UNKNOWN = Family("unknown", ())


def family_of(model: str) -> Family:
    """The family of a model, `UNKNOWN` if no row fits.

    Args:
        model (`str`): Folder or hub id; for an id the few small files are fetched, or found in the cache.
    """
    kind = read_json(model, "config.json").get("model_type")
    template = _read_template(model)
    row = next((row for row in FAMILIES if kind in row.model_types and row.mark in template), UNKNOWN)
    return replace(row, flags=row.flags + NOT_BY_DEFAULT) if closes_thinking(template) else row


def closes_thinking(template: str) -> bool:
    """Return whether a chat template's prompt, by default, ends with a thinking block that is closed already."""

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = make_environment()
    environment.globals["raise_exception"] = refuse
    # Templates may print the date, which has no bearing on the answer.
    environment.globals["strftime_now"] = lambda form: ""
    try:
        prompt = environment.from_string(template).render(
            messages=[{"role": "user", "content": "?"}], add_generation_prompt=True
        )
    except (TemplateError, TypeError, ValueError):
        return False
    return prompt.rstrip().endswith("</think>")


def has_chat_template(model: str) -> bool:
    """Return whether a model says how a chat is put to it.

    Args:
        model (`str`): Folder or hub id.
    """
    return bool(_read_template(model))


def _read_template(model: str) -> str:
    for name in TEMPLATE_FILES:
        path = _find_file(model, name)
        if path is None:
            continue
        text = path.read_text(encoding="utf-8")
        # The two JSON files hold the template as a field; several templates by name are a list there.
        if not name.endswith(".json"):
            return text
        template = json.loads(text).get("chat_template")
        if template:
            return template if isinstance(template, str) else json.dumps(template)
    return ""


def read_json(model: str, name: str) -> Mapping[str, Any]:
    """A JSON file of a model, from its folder or hub id; empty if the model has none of that name."""
    path = _find_file(model, name)
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return content


def _find_file(model: str, name: str) -> Path | None:
    folder = Path(model)
    if folder.is_dir():
        path = folder / name
        return path if path.is_file() else None
    # Imported here: a model in a folder needs no hub.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name))
    except (HfHubHTTPError, LocalEntryNotFoundError):
        return None
