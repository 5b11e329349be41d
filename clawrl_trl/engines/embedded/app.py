"""The engine over HTTP, in vLLM's dialect.

Routes translate; the engine decides.
Errors have OpenAI's shape. Everything but `/health` needs the bearer key.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from clawrl_trl.engines.calls import EMBEDDED
from clawrl_trl.engines.embedded import errors
from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.engine import Engine, UpdateQueue
from clawrl_trl.engines.embedded.errors import RequestError
from clawrl_trl.engines.embedded.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadBody,
    TokenizeBody,
    UnloadBody,
)
from clawrl_trl.engines.embedded.replies import ChatWriter, CompletionWriter
from clawrl_trl.engines.embedded.request_body import body_reader
from clawrl_trl.engines.embedded.responses import encode_json, respond
from clawrl_trl.errors import UserError
from clawrl_trl.http.body import run_beside
from clawrl_trl.messages import Json

router = APIRouter()

MAX_CONTEXTS = 4
"""Contexts whose tokens may be counted or decoded in one request, which may be more than fits one."""


def create_app(engine: Engine, key: str | None) -> FastAPI:
    """The application; decoding starts with it and ends with it. Its `state.refusal` says why it did not start.

    Args:
        engine (`Engine`): Loaded, not started.
        key (`str`, *optional*): Bearer key of every route but `/health`; `None` asks for none.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.scheduler.start(asyncio.get_running_loop())
        try:
            await engine.warm_up()
            yield
        except UserError as error:
            app.state.refusal = error  # of what fails here uvicorn reports no more than that it did
            raise
        finally:
            await asyncio.to_thread(engine.scheduler.close)

    app = FastAPI(title="clawrl-trl embedded engine", lifespan=lifespan, openapi_url=None)
    app.state.engine = engine
    app.state.key = key
    app.state.refusal = None
    app.include_router(router, dependencies=[Depends(_check_key)])
    app.add_api_route("/health", _report_health)
    errors.register(app)
    return app


def _get_engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _check_key(request: Request) -> None:
    key: str | None = request.app.state.key
    authorization = request.headers.get("authorization", "")
    if key is not None and not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        raise RequestError("Missing or wrong API key.", status=401)


async def _report_health(request: Request) -> Response:
    return Response(status_code=200 if _get_engine(request).scheduler.alive else 503)


@router.get("/v1/models")
async def models(request: Request) -> Json:
    """The base model and every loaded policy."""
    engine = _get_engine(request)
    return {"object": "list", "data": [_describe_model(policy, engine) for policy in engine.policies.all()]}


def _describe_model(policy: LoadedPolicy, engine: Engine) -> Json:
    base = policy is engine.policies.base
    return {
        "id": policy.name,
        "object": "model",
        "created": policy.created,
        "owned_by": EMBEDDED,
        "root": policy.path,
        "parent": None if base else engine.policies.base.name,
        "max_model_len": engine.max_model_len,
        "max_prompt_chars": engine.max_model_len * engine.vocabulary.characters_per_token,
    }


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    """Number of requests that run and that wait, under vLLM's names."""
    scheduler = _get_engine(request).scheduler
    lines = [
        f"vllm:num_requests_running {scheduler.running}",
        f"vllm:num_requests_waiting {scheduler.waiting}",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(
    request: Request, body: Annotated[LoadBody, Depends(body_reader(LoadBody))]
) -> PlainTextResponse:
    """Load a policy folder under a name."""
    await _get_engine(request).load_policy(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(
    request: Request, body: Annotated[UnloadBody, Depends(body_reader(UnloadBody))]
) -> PlainTextResponse:
    """Forget a policy; requests that run on it finish."""
    await _get_engine(request).unload_policy(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.post("/tokenize")
async def tokenize(request: Request, body: Annotated[TokenizeBody, Depends(body_reader(TokenizeBody))]) -> Response:
    """Token ids of a prompt or of a rendered conversation."""
    engine = _get_engine(request)
    engine.find_policy(body.model)
    return await run_beside(_count_characters(body), lambda: _tokenize_body(engine, body))


def _tokenize_body(engine: Engine, body: TokenizeBody) -> Response:
    engine.check_characters(_count_characters(body), times=MAX_CONTEXTS)
    if body.messages is None:
        tokens = engine.vocabulary.encode(body.prompt or "", special=body.add_special_tokens is not False)
    else:
        add_generation_prompt = body.add_generation_prompt and not body.continue_final_message
        text = _render(engine, body, body.messages, add_generation_prompt, times=MAX_CONTEXTS)
        tokens = engine.vocabulary.encode(text, special=bool(body.add_special_tokens))
    answer = {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens, "token_strs": None}
    return Response(encode_json(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request, body: Annotated[DetokenizeBody, Depends(body_reader(DetokenizeBody))]) -> Json:
    """The text of token ids."""
    engine = _get_engine(request)
    engine.find_policy(body.model)
    if len(body.tokens) > MAX_CONTEXTS * engine.max_model_len:
        raise RequestError(f"{len(body.tokens)} tokens are too many.", param="tokens")
    return {"prompt": await run_beside(len(body.tokens), lambda: engine.vocabulary.decode(body.tokens))}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: Annotated[ChatBody, Depends(body_reader(ChatBody))]) -> Response:
    """Continue a conversation."""
    engine = _get_engine(request)
    policy = engine.find_policy(body.model)
    queue = UpdateQueue(eager=body.stream)
    writer = await run_beside(_count_characters(body), lambda: _make_chat_writer(engine, policy, body, queue))
    return await respond(request, engine.scheduler, writer, queue)


def _make_chat_writer(engine: Engine, policy: LoadedPolicy, body: ChatBody, queue: UpdateQueue) -> ChatWriter:
    prompt = _render(engine, body, body.messages, body.add_generation_prompt)
    generation = engine.make_generation(
        policy,
        engine.vocabulary.encode(prompt, special=False),
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        deliver=queue.put,
        chat=True,
    )
    tools = None if body.tool_choice == "none" else body.tools
    readers = [engine.chat.make_reader(prompt, tools) for _ in range(body.n)]
    return ChatWriter(body, body.model or policy.name, engine.vocabulary, generation, readers)


def _render(
    engine: Engine, body: ChatBody | TokenizeBody, messages: list[Json], generation_prompt: bool, times: int = 1
) -> str:
    """Render the prompt text; refused before and after rendering if it can't fit."""
    # A template may leave out what the assistant said or thought before, but nothing that it was told.
    engine.check_characters(
        sum(_count_text(message) for message in messages if message.get("role") != "assistant"), times=times
    )
    text = engine.chat.render(
        messages,
        body.tools,
        add_generation_prompt=generation_prompt,
        continue_final_message=body.continue_final_message,
        template_arguments=body.chat_template_kwargs,
    )
    engine.check_characters(len(text), times=times)
    return text


def _count_characters(body: ChatBody | CompletionBody | TokenizeBody) -> int:
    """Count the characters, or token ids, of a request's messages or prompts."""
    if isinstance(body, CompletionBody):
        return sum(map(len, body.prompts()))
    if isinstance(body, TokenizeBody) and body.messages is None:
        return len(body.prompt or "")
    return sum(map(_count_text, body.messages or ())) + len(str(body.tools or ""))


def _count_text(message: Json) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts)
    return sum(len(text) for text in texts if isinstance(text, str))


@router.post("/v1/completions")
async def completions(
    request: Request, body: Annotated[CompletionBody, Depends(body_reader(CompletionBody))]
) -> Response:
    """Continue one or several prompts, given as text or token ids."""
    engine = _get_engine(request)
    policy = engine.find_policy(body.model)
    queue = UpdateQueue(eager=body.stream)
    writer = await run_beside(_count_characters(body), lambda: _make_completion_writer(engine, policy, body, queue))
    return await respond(request, engine.scheduler, writer, queue)


def _make_completion_writer(
    engine: Engine, policy: LoadedPolicy, body: CompletionBody, queue: UpdateQueue
) -> CompletionWriter:
    generations = [
        engine.make_generation(
            policy,
            _encode_prompt(engine, body, prompt),
            body,
            max_tokens=body.max_tokens,
            top_logprobs=body.logprobs,
            deliver=queue.put,
            chat=False,
        )
        for prompt in body.prompts()
    ]
    return CompletionWriter(body, body.model or policy.name, engine.vocabulary, generations)


def _encode_prompt(engine: Engine, body: CompletionBody, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    engine.check_characters(len(prompt))
    return engine.vocabulary.encode(prompt, special=body.add_special_tokens)
