"""`/v1/messages`: Anthropic's Messages API, on top of chat completions."""

from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from clawrl_trl.gateway.admission import admit_request
from clawrl_trl.gateway.requests import CountRequest, MessagesRequest
from clawrl_trl.gateway.routes.chat import answer
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.translate import anthropic_reply, anthropic_request
from clawrl_trl.gateway.wire import MESSAGES

router = APIRouter()

PATH = "/v1/messages"

_RENDERED = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


@router.post(PATH)
async def create(http: Request) -> Response:
    """A message, streamed or whole."""
    request = await admit_request(http, MessagesRequest, MESSAGES)
    chat = anthropic_request.to_chat(request.body)
    translated = replace(request, body=chat, api={"name": anthropic_reply.API})
    return await answer(http, translated, anthropic_reply.AnthropicReply())


@router.post(PATH + "/count_tokens")
async def count_tokens(http: Request) -> Response:
    """Number of tokens a request's prompt has, as the engine renders it."""
    gateway: Gateway = http.app.state.gateway
    request = await admit_request(http, CountRequest, MESSAGES)
    chat = anthropic_request.to_chat(request.body)
    version = gateway.policies.resolve(chat.get("model"))
    with gateway.policies.lease(version):
        # An engine tokenizes under the name of a model, and refuses one that it has not loaded.
        await gateway.policies.ensure(version)
        rendered = {name: chat[name] for name in _RENDERED if name in chat}
        tokens = await gateway.engine.tokenize({"model": gateway.policies.engine_name(version), **rendered})
    return JSONResponse({"input_tokens": len(tokens)})
