"""The bodies of requests: the part of vLLM's and OpenAI's protocol that the embedded engine serves.

Unknown keys are ignored, as vLLM ignores them. What is known but can't be honoured (constrained decoding) is refused
by name rather than ignored: a reply that only looks as if it obeyed a schema would be worse. Types are strict (true
is no number) and numbers are bounded by what float32 arithmetic on logits bears.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from clawrl_trl.engines.chat_template import Refused, TemplateArguments
from clawrl_trl.engines.embedded.sampling import Sampling
from clawrl_trl.http.limits import MAX_CHOICES
from clawrl_trl.messages import Json

T = TypeVar("T")

Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose check ends at the first wrong item: collecting them all takes seconds for a large body."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(extra="ignore", strict=True)


UNSUPPORTED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "allowed_token_ids",
    "bad_words",
    "use_beam_search",
    "echo",
)


class EngineStreamOptions(Body):
    include_usage: bool = False


class RepetitionDetection(Body):
    """vLLM's `repetition_detection`: a reply ends once a pattern of tokens stands `min_count` times in a row."""

    max_pattern_size: Annotated[int, Field(ge=0, le=64)] = 0
    min_pattern_size: Annotated[int, Field(ge=0, le=64)] = 0
    min_count: Annotated[int, Field(ge=0, le=1000)] = 0

    @model_validator(mode="after")
    def _counts(self) -> "RepetitionDetection":
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("min_pattern_size can't be above max_pattern_size")
        if self.max_pattern_size and self.min_count < 2:
            raise ValueError("min_count must be at least 2")
        return self

    @property
    def sizes(self) -> range:
        """Lengths of the patterns looked for; empty when there is nothing to look for."""
        return range(max(1, self.min_pattern_size), self.max_pattern_size + 1)


class SamplingBody(Body):
    """Fields that chat and plain completions have in common."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: EngineStreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # vLLM takes 0 and -1 for off.
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: Items[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Count = 0
    # Not strict: the keys of a JSON object are strings.
    logit_bias: dict[Annotated[TokenId, Field(strict=False)], Bias] | None = None
    repetition_detection: RepetitionDetection | None = None
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = None
    response_format: Json | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: object) -> object:
        unsupported = [name for name in UNSUPPORTED if isinstance(body, dict) and body.get(name)]
        if unsupported:
            raise ValueError(f"{unsupported[0]} is not supported by the embedded engine, use --engine vllm")
        return body

    @field_validator("response_format")
    @classmethod
    def _free_text(cls, value: Json | None) -> Json | None:
        if value is not None and value.get("type") != "text":
            raise ValueError("the embedded engine can't constrain replies, use --engine vllm for response_format")
        return value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and "" in ([value] if isinstance(value, str) else value):
            raise ValueError("a stop string can't be empty")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def to_sampling(self, *, max_tokens: int, eos_ids: frozenset[int], top_logprobs: int | None) -> Sampling:
        """Convert these settings to the engine's form."""
        stop_ids = frozenset(self.stop_token_ids or ()) | (frozenset() if self.ignore_eos else eos_ids)
        loops = self.repetition_detection or RepetitionDetection()
        return Sampling(
            loop_sizes=loops.sizes,
            loop_count=max(2, loops.min_count),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=stop_ids,
            logit_bias=self.logit_bias or {},
            top_logprobs=top_logprobs,
        )


class ConversationBody(Body):
    """Messages and how to render them."""

    messages: Annotated[Items[Json], Field(min_length=1)]
    tools: Items[Json] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: Refused = None
    chat_template_kwargs: TemplateArguments = None

    @field_validator("messages")
    @classmethod
    def _shaped(cls, messages: list[Json]) -> list[Json]:
        for index, message in enumerate(messages):
            content = message.get("content")
            if not isinstance(message.get("role"), str):
                raise ValueError(f"messages[{index}].role must be a string")
            parts = content if isinstance(content, list) else []
            if not (content is None or isinstance(content, str | list)) or not all(isinstance(p, dict) for p in parts):
                raise ValueError(f"messages[{index}].content must be a string, a list of parts, or null")
            calls = message.get("tool_calls") or []
            if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
                raise ValueError(f"messages[{index}].tool_calls must be a list of objects")
            if not all(isinstance(call.get("function") or {}, dict) for call in calls):
                raise ValueError(f"messages[{index}].tool_calls: function must be an object")
        return messages

    @field_validator("tools")
    @classmethod
    def _functions(cls, tools: list[Json] | None) -> list[Json] | None:
        for index, tool in enumerate(tools or []):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError(f"tools[{index}].function.name is required")
        return tools


class ChatBody(SamplingBody, ConversationBody):
    """`POST /v1/chat/completions`."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Json | None = None
    include_reasoning: bool = True

    @field_validator("tool_choice")
    @classmethod
    def _not_forced(cls, value: object) -> object:
        if value == "required" or isinstance(value, dict):
            raise ValueError("the embedded engine can't force a tool call, use 'auto' or --engine vllm")
        return value

    @model_validator(mode="after")
    def _generation_prompt(self) -> "ChatBody":
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt must be false when continue_final_message is true")
        return self


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    prompt: str | Items[int] | Items[str] | Items[Items[int]]
    max_tokens: Count | None = 16
    logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    add_special_tokens: bool = True

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class TokenizeBody(Body):
    """`POST /tokenize`: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Items[Json] | None = None
    tools: Items[Json] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template: Refused = None
    chat_template_kwargs: TemplateArguments = None

    @model_validator(mode="after")
    def _one_of(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None:
            # Made for its checks alone.
            ConversationBody(messages=self.messages, tools=self.tools)
        return self


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Items[TokenId]


class LoadBody(Body):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1)]
    load_inplace: bool = False


class UnloadBody(Body):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Annotated[str, Field(min_length=1)]
