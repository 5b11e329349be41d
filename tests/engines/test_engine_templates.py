"""Clients set variables of the model's own chat template and nothing else, and no rendering goes on for good."""

import json
import math
import threading
from typing import Any

import httpx
import pytest
from engine_checks import refused
from engine_server import Server

from clawrl_trl.engines.chat_template import find_variables
from clawrl_trl.engines.embedded.chat import ChatFormat, PromptError
from clawrl_trl.engines.embedded.deadline import OutOfTimeError, call_within

HELLO = [{"role": "user", "content": "hello"}]
NESTED = "{% for _ in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3
SILENT = NESTED.replace("x", "")
PATHS = ["/v1/chat/completions", "/tokenize"]


@pytest.fixture(autouse=True)
def embedded(server: Server) -> None:
    if server.is_vllm:
        pytest.skip("this is about the embedded engine")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": NESTED},
        {"chat_template_kwargs": {"chat_template": NESTED}},
        {"chat_template_kwargs": {"chat_template": "x" * 2**20}},
        {"chat_template_kwargs": {"chat_template_kwargs": {"chat_template": NESTED}}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"chat_template_kwargs": {"messages": HELLO}},
        {"chat_template_kwargs": {"eos_token": "</s>"}},
        {"chat_template_kwargs": {"range": 5}},
        {"chat_template_kwargs": {"no_such_variable": 1}},
        {"chat_template_kwargs": {"enable_thinking": [True]}},
        {"chat_template_kwargs": {"enable_thinking": {"a": 1}}},
        {"chat_template_kwargs": {"enable_thinking": "x" * 2000}},
        {"chat_template_kwargs": {"enable_thinking": 2**70}},
        {"chat_template_kwargs": {f"name{i}": 1 for i in range(100)}},
        {"chat_template_kwargs": {"not a name": 1}},
        {"chat_template_kwargs": []},
    ],
)
def test_only_variables_of_the_models_own_template_are_taken(
    http: httpx.Client, path: str, change: dict[str, Any]
) -> None:
    answer = http.post(path, json={"messages": HELLO, **change})
    message = refused(answer, 400)["message"]
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_variable_is_answered_with_the_known_ones(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json={"messages": HELLO, "chat_template_kwargs": {"no_such_variable": 1}})
    message = refused(answer, 400)["message"]
    assert "no_such_variable" in message and "enable_thinking" in message


@pytest.mark.parametrize("value", [True, False, None])
def test_the_switch_of_thinking_is_taken_by_any_template(http: httpx.Client, value: bool | None) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 1,
        "chat_template": None,
        "chat_template_kwargs": {"enable_thinking": value},
    }
    assert http.post(PATHS[0], json=body).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_call_of_no_function_is_refused(http: httpx.Client, path: str) -> None:
    call = {"id": "a", "type": "function", "function": 5}
    refused(http.post(path, json={"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}, *HELLO]}), 400)


def test_variables_are_read_off_the_template() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}"
        "{% set ns = namespace(a=1) %}{{ bos_token }}{{ today }}"
        "{% if effort == 'low' %}{{ raise_exception('') }}{% endif %}"
        "{% for i in range(3) %}{% break %}{% endfor %}{{ tools | tojson }}"
    )
    assert find_variables(template) == {"today", "effort", "enable_thinking"}
    assert find_variables({"default": "{{ a }}", "tool_use": "{{ b }}"}) == {"a", "b", "enable_thinking"}


class Tokenizer:
    """transformers' own rendering, of a template that never ends."""

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, **arguments: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        return str(render_jinja_template([conversation], chat_template=self.chat_template, **arguments)[0][0])


@pytest.mark.parametrize("template", [NESTED, SILENT, "{% macro m() %}" + SILENT + "{% endmacro %}{{ m() }}"])
def test_rendering_has_a_time_limit(template: str) -> None:
    chat = ChatFormat(Tokenizer(template), None, limit_s=0.2)
    with pytest.raises(PromptError, match=r"longer than 0\.2 s"):
        chat.render(HELLO)
    rest = [thread for thread in threading.enumerate() if thread.name == "call_within"]
    for thread in rest:
        thread.join(60)
        assert not thread.is_alive()


def test_a_limit_changes_nothing_for_what_ends_in_time() -> None:
    assert call_within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        call_within(60, lambda: 1 / 0)
    waiting = threading.Event()
    with pytest.raises(OutOfTimeError):
        call_within(0.05, waiting.wait)  # a call of C code, which nothing ends: its caller goes on
    waiting.set()


@pytest.mark.parametrize(
    "template", ["{{ messages[9].content.x }}", "{{ 1 / 0 }}", "{{ messages | sum }}", "{{ 'a' * -1 + 1 }}"]
)
def test_whatever_a_template_raises_is_told_to_the_client(template: str) -> None:
    with pytest.raises(PromptError, match="can't render"):
        ChatFormat(Tokenizer(template), None).render(HELLO)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"logit_bias": {"5": 1e308}}, 400),
        ({"logit_bias": {"5": -101}}, 400),
        ({"logit_bias": {"5": 100}}, 200),
        ({"logit_bias": {"5": True}}, 400),
        ({"logit_bias": {"five": 1}}, 400),
        ({"repetition_penalty": 1e-300}, 400),
        ({"repetition_penalty": 1e300}, 400),
        ({"repetition_penalty": 0.01}, 200),
        ({"repetition_penalty": 100}, 200),
        ({"temperature": 2.5}, 400),
        ({"temperature": 1e-300}, 200),
        ({"top_p": 1e-300}, 200),
        ({"top_k": 2**63}, 400),
        ({"top_k": True}, 400),
        ({"n": True}, 400),
        ({"min_tokens": 10**30}, 400),
        ({"max_tokens": 10**30}, 400),
        ({"seed": 2**70}, 400),
        ({"stop_token_ids": [2**70]}, 400),
        ({"stop_token_ids": [-1]}, 400),
    ],
)
def test_sampling_fields_are_bounded(http: httpx.Client, change: dict[str, Any], status: int) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    ):
        answer = http.post(path, json={**body, **change})
        assert answer.status_code == status, answer.text
        if status != 200:
            refused(answer, status)
    assert http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty", "logit_bias", "top_p"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(http: httpx.Client, name: str, number: float) -> None:
    value: Any = {"5": number} if name == "logit_bias" else number
    content = json.dumps({"messages": HELLO, "max_tokens": 2, name: value})
    headers = {"content-type": "application/json"}
    refused(http.post("/v1/chat/completions", content=content, headers=headers), 400)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a\\ud800b"}], "max_tokens": 1}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "model": "\\udfff"}'),
        ("/v1/completions", b'{"prompt": "\\ud83d", "max_tokens": 1}'),
        ("/v1/completions", b'{"prompt": ["a", "\\ud83d"], "max_tokens": 1}'),
        ("/tokenize", b'{"prompt": "\\ud83d"}'),
        ("/v1/load_lora_adapter", b'{"lora_name": "\\ud83d", "lora_path": "\\ud83d"}'),
        ("/v1/load_lora_adapter", b'{"lora_name": "x", "lora_path": "a\\u0000b"}'),
        ("/v1/unload_lora_adapter", b'{"lora_name": "\\ud83d"}'),
        ("/detokenize", b'{"tokens": [18446744073709551616]}'),
        ("/detokenize", b'{"tokens": [4294967296]}'),
    ],
)
def test_text_that_is_none_is_no_fault_of_the_engine(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    refused(answer, answer.status_code)
