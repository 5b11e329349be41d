"""`/v1/messages`: Anthropic's Messages API, on top of chat completions."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from clawrl_trl.gateway import body
from clawrl_trl.gateway.media import check_media
from clawrl_trl.gateway.record import IncomingRequest
from clawrl_trl.gateway.requests import CountRequest, MessagesRequest, check
from clawrl_trl.gateway.routes.chat import answer
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.translate import anthropic_reply, anthropic_request
from clawrl_trl.gateway.wire import MESSAGES

router = APIRouter()

PATH = "/v1/messages"

_RENDERED = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


@router.post(PATH)
async def create(request: Request) -> Response:
    """A message, streamed or whole."""
    gateway: Gateway = request.app.state.gateway
    headers = dict(request.headers)
    owner = gateway.keys.chat_owner(headers)
    raw = await body.read(request, await gateway.body_limit(request.headers.get("content-length")))
    content = await body.parsed(raw)
    check(MessagesRequest, content)
    check_media(content, gateway.settings.media_domains)
    chat = anthropic_request.to_chat(content)
    api = {"name": anthropic_reply.API}
    asked = IncomingRequest(MESSAGES, owner, headers, chat, request.scope.get("path_session"), api=api)
    return await answer(request, asked, len(raw), anthropic_reply.AnthropicReply())


@router.post(PATH + "/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Number of tokens a request's prompt has, as the engine renders it."""
    gateway: Gateway = request.app.state.gateway
    gateway.keys.chat_owner(dict(request.headers))
    content = await body.read_json(request, await gateway.body_limit(request.headers.get("content-length")))
    check(CountRequest, content)
    check_media(content, gateway.settings.media_domains)
    chat = anthropic_request.to_chat(content)
    version = gateway.policies.resolve(chat.get("model"))
    with gateway.policies.lease(version):
        await gateway.policies.ensure(version)
        rendered = {name: chat[name] for name in _RENDERED if name in chat}
        tokens = await gateway.engine.tokenize({"model": gateway.policies.engine_name(version), **rendered})
    return JSONResponse({"input_tokens": len(tokens)})
