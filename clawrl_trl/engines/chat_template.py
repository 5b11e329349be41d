"""A chat template's variables, and the values that a client may give them.

A template is a program of the model's maker. A client sets variables of it and brings neither a template nor
arguments of the renderer: both would run in the engine, for as long as they like. Importing this loads no torch.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BeforeValidator

MAX_ARGUMENTS = 32
MAX_TEXT = 1000

THINKING = "enable_thinking"
"""The switch that clients, and the gateway's translations, set for any model; other templates ignore it."""

RENDERER_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that the renderers of transformers and vLLM give a meaning or a value of their own."""


class _Generation(Extension):
    """Training templates mark what the model wrote; to rendering, the mark means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Make a jinja2 environment that parses chat templates as transformers does."""
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )


def find_variables(template: str | Mapping[str, str]) -> frozenset[str]:
    """Find the variables of a chat template that a client may set.

    Args:
        template (`str` or `Mapping[str, str]`): The template, or several by name.

    Raises:
        TemplateSyntaxError: If it is none.
    """
    texts = [template] if isinstance(template, str) else list(template.values())
    environment = make_environment()
    names = {name for text in texts for name in find_undeclared_variables(environment.parse(text))}
    # The renderer sets bos_token and its like from the tokenizer.
    tokens = {name for name in names if name.endswith("_token")}
    return frozenset(names | {THINKING}) - RENDERER_ARGUMENTS - environment.globals.keys() - tokens


def _check_arguments(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    if len(value) > MAX_ARGUMENTS:
        raise ValueError(f"may set at most {MAX_ARGUMENTS} variables")
    for name, item in value.items():
        if name in RENDERER_ARGUMENTS:
            raise ValueError(f"{name!r} is not for clients to set, only variables of the model's own template are")
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_TEXT:
            raise ValueError(f"{str(name)[:100]!r} is no name of a template's variable")
        if not _is_plain(item):
            raise ValueError(f"{name!r} must be true, false, a number or a text of at most {MAX_TEXT:,} characters")
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, int | float):
        return abs(value) < 2**63  # also refuses what is not a number
    return value is None


def _refuse(value: object) -> None:
    if value is not None:
        raise ValueError(
            "clients can't bring a chat template; set variables of the model's own in chat_template_kwargs"
        )


TemplateArguments = Annotated[dict[str, Any] | None, BeforeValidator(_check_arguments)]
"""The type of `chat_template_kwargs`: at most 32 names, each with a truth value, a number or a short text."""

Refused = Annotated[None, BeforeValidator(_refuse)]
"""The type of fields in which other servers take a template from the client; only null passes."""
