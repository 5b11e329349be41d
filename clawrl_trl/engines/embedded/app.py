"""The engine over HTTP, in vLLM's dialect.

Routes translate; the engine decides. A request whose client has gone is cancelled within a step, streamed or not.
Errors have OpenAI's shape. Everything but `/health` needs the bearer key.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.engines.calls import EMBEDDED
from clawrl_trl.engines.embedded import errors
from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.engine import Engine, Mailbox
from clawrl_trl.engines.embedded.errors import RequestError, error_object
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.posted import posted
from clawrl_trl.engines.embedded.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadBody,
    TokenizeBody,
    UnloadBody,
)
from clawrl_trl.engines.embedded.replies import ChatWriter, CompletionWriter, Json, Piece, ReplyFailed
from clawrl_trl.http.body import run_beside

router = APIRouter()

MAX_CONTEXTS = 4
"""Contexts whose tokens may be counted or decoded in one request, which may be more than fits one."""


def create_app(engine: Engine, key: str | None) -> FastAPI:
    """The application; decoding starts with it and ends with it.

    Args:
        engine (`Engine`): Loaded, not started.
        key (`str`, *optional*): Bearer key of every route but `/health`; `None` asks for none.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.scheduler.start(asyncio.get_running_loop())
        await engine.warm_up()
        yield
        await asyncio.to_thread(engine.scheduler.close)

    app = FastAPI(title="clawrl-trl embedded engine", lifespan=lifespan, openapi_url=None)
    app.state.engine = engine
    app.state.key = key
    app.include_router(router, dependencies=[Depends(_authorised)])
    app.add_api_route("/health", _health)
    errors.register(app)
    return app


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _authorised(request: Request) -> None:
    key: str | None = request.app.state.key
    given = request.headers.get("authorization", "")
    if key is not None and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
        raise RequestError("Missing or wrong API key.", status=401)


async def _health(request: Request) -> Response:
    return Response(status_code=200 if _engine(request).scheduler.alive else 503)


@router.get("/v1/models")
async def models(request: Request) -> Json:
    """The base model and every loaded policy."""
    engine = _engine(request)
    return {"object": "list", "data": [_card(one, engine) for one in engine.policies.all()]}


def _card(policy: LoadedPolicy, engine: Engine) -> Json:
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
    scheduler = _engine(request).scheduler
    lines = [
        f"vllm:num_requests_running {scheduler.running}",
        f"vllm:num_requests_waiting {scheduler.waiting}",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(
    request: Request, body: Annotated[LoadBody, Depends(posted(LoadBody))]
) -> PlainTextResponse:
    """Load a policy folder under a name."""
    await _engine(request).load_policy(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(
    request: Request, body: Annotated[UnloadBody, Depends(posted(UnloadBody))]
) -> PlainTextResponse:
    """Forget a policy; requests that run on it finish."""
    await _engine(request).unload_policy(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.post("/tokenize")
async def tokenize(request: Request, body: Annotated[TokenizeBody, Depends(posted(TokenizeBody))]) -> Response:
    """Token ids of a prompt or of a rendered conversation."""
    engine = _engine(request)
    engine.policy(body.model)
    return await run_beside(_characters(body), lambda: _tokenized(engine, body))


def _tokenized(engine: Engine, body: TokenizeBody) -> Response:
    engine.check_characters(_characters(body), times=MAX_CONTEXTS)
    if body.messages is None:
        tokens = engine.vocabulary.encode(body.prompt or "", special=body.add_special_tokens is not False)
    else:
        add_generation_prompt = body.add_generation_prompt and not body.continue_final_message
        text = _render(engine, body, body.messages, add_generation_prompt, times=MAX_CONTEXTS)
        tokens = engine.vocabulary.encode(text, special=bool(body.add_special_tokens))
    answer = {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens, "token_strs": None}
    return Response(_encoded(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request, body: Annotated[DetokenizeBody, Depends(posted(DetokenizeBody))]) -> Json:
    """The text of token ids."""
    engine = _engine(request)
    engine.policy(body.model)
    if len(body.tokens) > MAX_CONTEXTS * engine.max_model_len:
        raise RequestError(f"{len(body.tokens)} tokens are too many.", param="tokens")
    return {"prompt": await run_beside(len(body.tokens), lambda: engine.vocabulary.decode(body.tokens))}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: Annotated[ChatBody, Depends(posted(ChatBody))]) -> Response:
    """Continue a conversation."""
    engine = _engine(request)
    policy = engine.policy(body.model)
    mailbox = Mailbox(eager=body.stream)
    writer = await run_beside(_characters(body), lambda: _chat_writer(engine, policy, body, mailbox))
    return await _answer(request, writer, mailbox)


def _chat_writer(engine: Engine, policy: LoadedPolicy, body: ChatBody, mailbox: Mailbox) -> ChatWriter:
    prompt = _render(engine, body, body.messages, body.add_generation_prompt)
    generation = engine.generation(
        policy,
        engine.vocabulary.encode(prompt, special=False),
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        deliver=mailbox.put,
        chat=True,
    )
    tools = None if body.tool_choice == "none" else body.tools
    readers = [engine.chat.reader(prompt, tools) for _ in range(body.n)]
    return ChatWriter(body, body.model or policy.name, engine.vocabulary, generation, readers)


def _render(
    engine: Engine, body: ChatBody | TokenizeBody, messages: list[Json], generation_prompt: bool, times: int = 1
) -> str:
    """The prompt text, refused before and after rendering if it can't fit."""
    # A template may leave out what the assistant said or thought before, but nothing that it was told.
    engine.check_characters(sum(_length(one) for one in messages if one.get("role") != "assistant"), times=times)
    text = engine.chat.render(
        messages,
        body.tools,
        add_generation_prompt=generation_prompt,
        continue_final_message=body.continue_final_message,
        template_arguments=body.chat_template_kwargs,
    )
    engine.check_characters(len(text), times=times)
    return text


def _characters(body: ChatBody | CompletionBody | TokenizeBody) -> int:
    """Length of what a request says, in characters or token ids."""
    if isinstance(body, CompletionBody):
        return sum(map(len, body.prompts()))
    if isinstance(body, TokenizeBody) and body.messages is None:
        return len(body.prompt or "")
    return sum(map(_length, body.messages or ())) + len(str(body.tools or ""))


def _length(message: Json) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts)
    return sum(len(text) for text in texts if isinstance(text, str))


@router.post("/v1/completions")
async def completions(request: Request, body: Annotated[CompletionBody, Depends(posted(CompletionBody))]) -> Response:
    """Continue one or several prompts, given as text or token ids."""
    engine = _engine(request)
    policy = engine.policy(body.model)
    mailbox = Mailbox(eager=body.stream)
    writer = await run_beside(_characters(body), lambda: _completion_writer(engine, policy, body, mailbox))
    return await _answer(request, writer, mailbox)


def _completion_writer(
    engine: Engine, policy: LoadedPolicy, body: CompletionBody, mailbox: Mailbox
) -> CompletionWriter:
    generations = [
        engine.generation(
            policy,
            _prompt_ids(engine, body, prompt),
            body,
            max_tokens=body.max_tokens,
            top_logprobs=body.logprobs,
            deliver=mailbox.put,
            chat=False,
        )
        for prompt in body.prompts()
    ]
    return CompletionWriter(body, body.model or policy.name, engine.vocabulary, generations)


def _prompt_ids(engine: Engine, body: CompletionBody, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    engine.check_characters(len(prompt))
    return engine.vocabulary.encode(prompt, special=body.add_special_tokens)


async def _answer(request: Request, writer: ChatWriter | CompletionWriter, mailbox: Mailbox) -> Response:
    scheduler = _engine(request).scheduler
    if not scheduler.alive:
        raise RequestError("The engine has stopped decoding.", status=503)
    scheduler.submit(writer.generations)
    if writer.body.stream:
        return EventStream(writer, mailbox)
    try:
        return await _unless_gone(request, _whole(writer, mailbox))
    finally:
        _release(writer.generations)


class EventStream(StreamingResponse):
    """Streams a request's chunks as server-sent events; however it ends, its generations are released."""

    def __init__(self, writer: ChatWriter | CompletionWriter, mailbox: Mailbox) -> None:
        super().__init__(_events(writer, mailbox), media_type="text/event-stream")
        self._generations = writer.generations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _release(self._generations)


async def _updates(writer: ChatWriter | CompletionWriter, mailbox: Mailbox) -> AsyncIterator[dict[int, Piece]]:
    remaining = len(writer.generations) * writer.body.n
    while remaining:
        pieces = writer.read(await mailbox.take())
        remaining -= sum(piece.finish_reason is not None for piece in pieces.values())
        yield pieces


async def _whole(writer: ChatWriter | CompletionWriter, mailbox: Mailbox) -> Response:
    updates: list[Update] = []
    remaining = len(writer.generations) * writer.body.n
    while remaining:
        new = await mailbox.take()
        updates += new
        remaining -= sum(update.finish_reason is not None for update in new)
    return await asyncio.to_thread(_written, writer, updates)


def _written(writer: ChatWriter | CompletionWriter, updates: list[Update]) -> Response:
    pieces = writer.read(updates)
    return Response(_encoded(writer.whole([pieces[index] for index in sorted(pieces)])), media_type="application/json")


async def _events(writer: ChatWriter | CompletionWriter, mailbox: Mailbox) -> AsyncIterator[bytes]:
    begun = False
    try:
        async for pieces in _updates(writer, mailbox):
            chunks = [writer.chunk(index, piece) for index, piece in pieces.items()]
            if isinstance(writer, ChatWriter) and not begun:
                chunks.insert(0, writer.first_chunk())
            begun = True
            yield b"".join(_event(chunk) for chunk in chunks if chunk is not None)
        options = writer.body.stream_options
        if options is not None and options.include_usage:
            yield _event(writer.usage_chunk())
    except ReplyFailed as failure:
        yield _event(error_object(str(failure), 500))
    yield b"data: [DONE]\n\n"


def _release(generations: list[Generation]) -> None:
    for generation in generations:
        generation.cancelled = True


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The result of the work, or nothing at all when the client hangs up first."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=499)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _encoded(content: Json) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _event(content: Json) -> bytes:
    return b"data: " + _encoded(content) + b"\n\n"
