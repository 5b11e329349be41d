"""The engine over HTTP, in vLLM's dialect.

Routes translate; the engine decides. A request whose client has gone is cancelled within a step, streamed or not.
Errors have OpenAI's shape. Everything but `/health` needs the bearer key.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.engines.embedded import errors
from clawrl_trl.engines.embedded.adapters import Policy
from clawrl_trl.engines.embedded.engine import Engine, Mailbox
from clawrl_trl.engines.embedded.errors import RequestError, error_object
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadBody,
    TokenizeBody,
    UnloadBody,
)
from clawrl_trl.engines.embedded.replies import ChatWriter, CompletionWriter, Json, Piece, ReplyFailed

router = APIRouter()


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


def _card(policy: Policy, engine: Engine) -> Json:
    base = policy is engine.policies.base
    return {
        "id": policy.name,
        "object": "model",
        "created": policy.created,
        "owned_by": "clawrl-trl",
        "root": policy.path,
        "parent": None if base else engine.policies.base.name,
        "max_model_len": engine.max_model_len,
    }


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    """How many requests run and wait, under vLLM's names."""
    scheduler = _engine(request).scheduler
    lines = [
        f"vllm:num_requests_running {scheduler.running}",
        f"vllm:num_requests_waiting {scheduler.waiting}",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(request: Request, body: LoadBody) -> PlainTextResponse:
    """Load a policy folder under a name."""
    await _engine(request).load_policy(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(request: Request, body: UnloadBody) -> PlainTextResponse:
    """Forget a policy; requests that run on it finish."""
    await _engine(request).unload_policy(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeBody) -> Json:
    """Token ids of a prompt or of a rendered conversation."""
    engine = _engine(request)
    engine.policy(body.model)
    tokens = await asyncio.to_thread(_tokens, engine, body)
    return {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens, "token_strs": None}


def _tokens(engine: Engine, body: TokenizeBody) -> list[int]:
    if body.messages is None:
        return engine.vocabulary.encode(body.prompt or "", special=body.add_special_tokens is not False)
    text = engine.chat.render(
        body.messages,
        body.tools,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        template_arguments=body.chat_template_kwargs,
    )
    return engine.vocabulary.encode(text, special=bool(body.add_special_tokens))


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeBody) -> Json:
    """The text of token ids."""
    engine = _engine(request)
    engine.policy(body.model)
    return {"prompt": engine.vocabulary.decode(body.tokens)}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatBody) -> Response:
    """Continue a conversation."""
    engine = _engine(request)
    policy = engine.policy(body.model)
    tools = None if body.tool_choice == "none" else body.tools
    prompt, prompt_ids = await asyncio.to_thread(_rendered, engine, body)
    mailbox = Mailbox(eager=body.stream)
    generation = engine.generation(
        policy,
        prompt_ids,
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        deliver=mailbox.put,
        chat=True,
    )
    readers = [engine.chat.reader(prompt, tools) for _ in range(body.n)]
    writer = ChatWriter(body, body.model or policy.name, engine.vocabulary, generation, readers)
    return await _answer(request, writer, mailbox)


def _rendered(engine: Engine, body: ChatBody) -> tuple[str, list[int]]:
    prompt = engine.chat.render(
        body.messages,
        body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_arguments=body.chat_template_kwargs,
    )
    return prompt, engine.vocabulary.encode(prompt, special=False)


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionBody) -> Response:
    """Continue one or several prompts, given as text or token ids."""
    engine = _engine(request)
    policy = engine.policy(body.model)
    mailbox = Mailbox(eager=body.stream)
    generations = [
        engine.generation(
            policy,
            engine.vocabulary.encode(one, special=body.add_special_tokens) if isinstance(one, str) else one,
            body,
            max_tokens=body.max_tokens,
            top_logprobs=body.logprobs,
            deliver=mailbox.put,
            chat=False,
        )
        for one in body.prompts()
    ]
    writer = CompletionWriter(body, body.model or policy.name, engine.vocabulary, generations)
    return await _answer(request, writer, mailbox)


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
