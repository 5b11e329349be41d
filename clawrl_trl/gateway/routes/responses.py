"""`/v1/responses`: OpenAI's Responses API, on top of chat completions.

A response is a turn of the ledger: it can be continued (`previous_response_id`), fetched and deleted by its id,
by the key that made it and no other. `store: false` hides a response from that, as the API says; it is captured
like every reply. Deleting one erases the turn with everything that was learnt about it, but not what later
requests of its conversation repeated of it.
"""

import asyncio
import logging
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.gateway.admission import admit_request
from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.gateway.media import check_media
from clawrl_trl.gateway.requests import ResponsesRequest
from clawrl_trl.gateway.routes.chat import ReplyResponse, answer
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.translate import responses_reply, responses_request
from clawrl_trl.gateway.wire import RESPONSES
from clawrl_trl.ledger import schema, turns
from clawrl_trl.messages import Json, Message

logger = logging.getLogger(__name__)

router = APIRouter()

PATH = "/v1/responses"


@router.post(PATH)
async def create(http: Request) -> Response:
    """A response, streamed or whole."""
    gateway: Gateway = http.app.state.gateway
    request = await admit_request(http, ResponsesRequest, RESPONSES)
    content = request.body
    history: list[Message] = []
    session_id = None
    if (previous := content.get("previous_response_id")) is not None:
        history, session_id = await asyncio.to_thread(_read_history, gateway, request.owner, previous)
        # What was allowed when the earlier request came may not be any more: the run's settings can have changed.
        check_media({"messages": history}, gateway.settings.media_domains)
    chat = responses_request.to_chat(content, history)
    api = responses_reply.select_remembered_fields(content)
    translated = replace(request, body=chat, api=api, follows=session_id)
    reply = responses_reply.ResponsesReply(api, content.get("instructions"), chat.get("tools"), request.at)
    return await answer(http, translated, reply)


@router.get(PATH + "/{response_id}")
async def fetch(http: Request, response_id: str) -> Response:
    """A response that was made before."""
    gateway: Gateway = http.app.state.gateway
    owner = gateway.keys.chat_owner(dict(http.headers))
    return ReplyResponse(await asyncio.to_thread(_describe_response, gateway, owner, response_id))


@router.delete(PATH + "/{response_id}")
async def delete(http: Request, response_id: str) -> Response:
    """Erase a response."""
    gateway: Gateway = http.app.state.gateway
    owner = gateway.keys.chat_owner(dict(http.headers))

    def erase(tx: Transaction) -> None:
        turns.delete_turn(tx, _stored_turn(tx, owner, response_id).id)

    await gateway.write(erase)
    # The text of an erased row stands in SQLite's write-ahead log until that is cleared.
    if not await asyncio.to_thread(gateway.ledger.checkpoint):
        logger.warning("%s is deleted, its text stays in %s-wal for now", response_id, gateway.ledger.where)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def _read_history(gateway: Gateway, owner: str, previous: str) -> tuple[list[Message], str]:
    """The conversation up to and including a response, without that request's instructions, and its session."""
    with gateway.ledger.reader() as tx:
        try:
            turn = _stored_turn(tx, owner, previous)
        except ApiError:
            raise invalid(
                f"Previous response with id {previous[:100]!r} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        _, messages = responses_reply.split_instructions(turn.sampling["api"], turn.messages)
        # Thoughts go on under vLLM's name, the only one that it reads.
        response = {name: value for name, value in turn.response.items() if name != "reasoning_content"}
        if turn.response.get("reasoning_content"):
            response["reasoning"] = turn.response["reasoning_content"]
        return [*messages, response], turn.session_id


def _describe_response(gateway: Gateway, owner: str, response_id: str) -> Json:
    with gateway.ledger.reader() as tx:
        turn = _stored_turn(tx, owner, response_id)
        api = turn.sampling["api"]
        instructions, _ = responses_reply.split_instructions(api, turn.messages)
        choice = {"message": turn.response, "finish_reason": turn.finish_reason}
        model = turn.sampling["model"] or gateway.policies.alias
        completion = {"id": turn.completion_id, "model": model, "choices": [choice], "usage": turn.usage}
        return responses_reply.ResponsesReply(api, instructions, turn.tools, turn.created_at).convert(completion)


def _stored_turn(tx: Transaction, owner: str, response_id: str) -> schema.Turn:
    """The turn of a stored response.

    Raises:
        ApiError: 404 if there is none, it was not to be stored, or it is another key's.
    """
    turn = turns.by_completion(tx, response_id)
    api = turn.sampling.get("api") or {} if turn else {}
    session = tx.get(schema.Session, turn.session_id) if turn else None
    stored = api.get("name") == responses_reply.API and api.get("store", True)
    if turn is None or not stored or session is None or session.owner != owner:
        raise invalid(f"Response with id {response_id[:100]!r} not found.", status=404, code="response_not_found")
    return turn
