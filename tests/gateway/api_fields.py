"""The fields of every route that takes JSON, as the official SDKs list them, with a request that is served."""

from dataclasses import dataclass
from typing import Any, get_type_hints

from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from clawrl_trl.engines.embedded import protocol
from clawrl_trl.gateway import requests
from clawrl_trl.gateway.routes import episodes, feedback
from clawrl_trl.gateway.translate import fields

Json = dict[str, Any]

PICTURE = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read", "description": "Read a file.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Read a."}], "name": "ann"},
    {"role": "assistant", "content": None, "reasoning_content": "Easy.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "b"},
    {"role": "user", "content": "And?"},
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read a."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Easy."}]},
    {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path": "a"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "b"},
    {"role": "user", "content": "And?"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Read a.", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Easy.", "signature": "x"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "b"}]},
]
ANTHROPIC_TOOL = {"name": "read", "description": "Read a file.", "input_schema": SCHEMA}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["x"], "logit_bias": {"5": 1}, "stream": False}


@dataclass(frozen=True)
class Route:
    """A route that takes JSON.

    Attributes:
        path: Where it is.
        body: A request that is served.
        names: Every field that is known.
    """

    path: str
    body: Json
    names: tuple[str, ...]


def _route(path: str, body: Json, *kinds: Any) -> Route:
    names = set(body)
    for kind in kinds:
        names |= set(getattr(kind, "model_fields", None) or get_type_hints(kind))
    return Route(path, body, tuple(sorted(names | fields.COMMON_FIELDS)))


CHAT = _route(
    "/v1/chat/completions",
    {"model": "clawrl", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 1, **SAMPLING},
    chat_create_params.CompletionCreateParamsNonStreaming,
    requests.ChatRequest,
    protocol.ChatBody,
)
COMPLETIONS = _route(
    "/v1/completions",
    {"model": "clawrl", "prompt": ["hello", "there"], "max_tokens": 1, **SAMPLING},
    completion_create_params.CompletionCreateParamsNonStreaming,
    requests.CompletionRequest,
    protocol.CompletionBody,
)
TOKENIZE = _route("/tokenize", {"model": "clawrl", "messages": MESSAGES, "tools": [TOOL]}, protocol.TokenizeBody)
DETOKENIZE = _route("/detokenize", {"model": "clawrl", "tokens": [1, 2]}, protocol.DetokenizeBody)
LOAD = Route(
    "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/nowhere"}, ("lora_name", "lora_path", "load_inplace")
)
UNLOAD = Route("/v1/unload_lora_adapter", {"lora_name": "x"}, ("lora_name",))

ENGINE_ROUTES = (CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE, LOAD, UNLOAD)
"""What the embedded engine offers, and the gateway captures or forwards."""

GATEWAY_ROUTES = (
    *ENGINE_ROUTES,
    _route(
        "/v1/responses",
        {
            "model": "clawrl",
            "input": ITEMS,
            "instructions": "Be brief.",
            "tools": [{"type": "function", **FUNCTION, "strict": False}],
            "max_output_tokens": 1,
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
            "metadata": {"session_id": "s"},
        },
        response_create_params.ResponseCreateParamsNonStreaming,
        requests.ResponsesRequest,
    ),
    _route(
        "/v1/messages",
        {
            "model": "clawrl",
            "messages": BLOCKS,
            "max_tokens": 1,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [ANTHROPIC_TOOL],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "u"},
        },
        message_create_params.MessageCreateParamsNonStreaming,
        requests.MessagesRequest,
    ),
    _route(
        "/v1/messages/count_tokens",
        {"model": "clawrl", "messages": BLOCKS, "system": "Be brief.", "tools": [ANTHROPIC_TOOL]},
        message_count_tokens_params.MessageCountTokensParams,
        requests.CountRequest,
    ),
    _route("/v1/feedback", {"id": "chatcmpl-turn_x", "score": 1}, feedback.FeedbackRequest),
    _route(
        "/v1/episodes",
        {"group": "g", "episodes": [{"session_id": "s", "outcome": 1.0, "reason": "", "signals": {"turn_x": 0.5}}]},
        episodes.EpisodesRequest,
    ),
)
"""Every route of the gateway that takes JSON."""
