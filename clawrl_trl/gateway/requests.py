"""Schemas of the parts of a request that the gateway itself relies on.

Only types and ranges are checked, and only of fields that are read here or stored; everything else passes
through to the engine, which knows best. The models are used for checking alone: what is forwarded is the
client's own object.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clawrl_trl.engines.chat_template import Refused, TemplateArguments
from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.http.limits import MAX_CHOICES
from clawrl_trl.messages import Json

T = TypeVar("T")
S = TypeVar("S", bound=BaseModel)
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose check ends at the first wrong item."""

Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Function(_Schema):
    name: str | None = None
    arguments: str | Json | None = None


class ToolCall(_Schema):
    id: str | None = None
    type: str | None = None
    function: Function | None = None


class Message(_Schema):
    role: Role
    content: str | Items[Json] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class StreamOptions(_Schema):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Request(_Schema):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Int64 | None = None
    stop: str | Items[str] | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: Items[TokenId] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Bias] | None = None
    priority: Int64 | None = None
    # A template is a program that the engine would run for whoever sends it.
    chat_template: Refused = None
    trust_request_chat_template: Refused = None
    chat_template_kwargs: TemplateArguments = None
    return_token_ids: bool | None = None
    session_id: str | int | None = None
    turn_type: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class ChatRequest(_Request):
    messages: Annotated[Items[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1024)] | None = None
    tools: Items[Json] | None = None
    tool_choice: str | Json | None = None
    response_format: Json | None = None


class ResponsesRequest(_Request):
    input: str | Items[Json]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    tools: Items[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    metadata: Json | None = None
    text: Json | None = None
    reasoning: Json | None = None
    include: Items[str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    safety_identifier: str | None = None


class CountRequest(_Request):
    """Body of Anthropic's token count: a request without its sampling."""

    messages: Annotated[Items[Json], Field(min_length=1)]
    system: str | Items[Json] | None = None
    tools: Items[Json] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    metadata: Json | None = None
    stop_sequences: Items[str] | None = None


class MessagesRequest(CountRequest):
    max_tokens: Tokens


class ForwardedRequest(_Schema):
    """The parts of a request to any other endpoint of the engine that may not be passed on unseen."""

    chat_template: Refused = None
    trust_request_chat_template: Refused = None
    chat_template_kwargs: TemplateArguments = None


class CompletionRequest(_Request):
    prompt: str | Items[str] | Items[TokenId] | Items[Items[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=1024)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None


def check_schema(schema: type[S], body: Json) -> S:
    """Check a body against a schema and return what was read.

    Raises:
        ApiError: 400 that names the first field at fault.
    """
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _refusal(error, body) from None


def _refusal(error: ValidationError, body: Json) -> ApiError:
    # Without the input: an error would repeat a message of the chat, at whatever length.
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _field(first["loc"], body)
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    message = first["msg"].removeprefix("Value error, ")
    return invalid(f"{param}: {message}", param=param, code=code)


def _field(location: tuple[int | str, ...], body: object) -> str:
    """The path of the field at fault, without the names pydantic gives to a union's branches."""
    path: list[str] = []
    here = body
    for part in location:
        if isinstance(here, Mapping):
            path.append(str(part))
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            path.append(str(part))
            here = here[part] if part < len(here) else None
        else:
            break
    return ".".join(path)
