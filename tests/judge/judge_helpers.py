"""Helpers of the judge's tests: a ledger with turns to judge, and a small server that answers as it is told."""

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from clawrl_trl.judge.turn import FeedbackItem, JudgedTurn
from clawrl_trl.ledger import Ledger, schema, turns
from clawrl_trl.ledger.columns import new_id


def render(messages: list[dict[str, Any]], generate: bool = True) -> list[int]:
    """The scripted server's chat template and tokenizer: one token per character, thoughts read as vLLM reads them."""
    text = "".join(f"<{one['role']}>{one.get('reasoning') or ''}{one.get('content') or ''}" for one in messages)
    return [ord(one) for one in text + ("<assistant>" if generate else "")]


def logprob(context: list[int], token: int) -> float:
    """The scripted model: any function of the context will do that is a log-prob."""
    return -0.01 - ((sum(context[-50:]) * 31 + len(context) * 7 + token) % 97) / 97


def ranked(context: list[int]) -> list[int]:
    """The scripted model's vocabulary, most likely token first."""
    return sorted(range(128), key=lambda token: -logprob(context, token))


@dataclass
class Scripted:
    """What the server was asked and how it answers."""

    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    votes: Callable[[dict[str, Any], int], Any] = lambda body, number: '{"score": 1, "hint": null}'
    broken: dict[str, int] = field(default_factory=dict)
    """Path to HTTP status: this many-hundred answer instead of a good one."""
    structured: bool = True
    most_pictures: int = 100
    """Most pictures that a prompt may have."""
    picture_refusal: tuple[int, str] = (400, "image input is not supported")
    """Status and words with which it refuses more."""
    absent: set[str] = field(default_factory=set)
    """Models it does not serve."""
    names: list[str] = field(default_factory=list)
    """The models that it lists, and then serves no others; empty for a server that lists none."""
    roots: dict[str, str] = field(default_factory=dict)
    """What it says that they were loaded from."""
    widest: int = 128
    """Most log-probs per prompt token that it returns."""

    def chats(self) -> list[dict[str, Any]]:
        return [body for body in self.requests if body["path"] == "/v1/chat/completions"]


def pictures_of(body: dict[str, Any]) -> list[str]:
    """Addresses of the pictures in a request's last message."""
    content = body["messages"][-1]["content"]
    parts = content if isinstance(content, list) else []
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def build(script: Scripted) -> FastAPI:
    app = FastAPI()

    async def body_of(request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        body["path"] = request.url.path
        script.requests.append(body)
        return body

    def failure(body: dict[str, Any]) -> JSONResponse | None:
        status = script.broken.get(body["path"])
        if body["model"] in script.absent or (script.names and body["model"] not in script.names):
            status = 404
        return JSONResponse({"error": {"message": "scripted", "type": "x"}}, status) if status else None

    @app.get("/v1/models", response_model=None)
    async def models() -> Any:
        if "/v1/models" in script.broken or not script.names:
            return JSONResponse({"detail": "scripted"}, script.broken.get("/v1/models", 404))
        return {"data": [{"id": name, "root": script.roots.get(name)} for name in script.names]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Any:
        body = await body_of(request)
        if (failed := failure(body)) is not None:
            return failed
        if "response_format" in body and not script.structured:
            return JSONResponse({"error": {"message": "response_format is not supported"}}, 400)
        if len(pictures_of(body)) > script.most_pictures:
            status, words = script.picture_refusal
            return JSONResponse({"error": {"message": words}}, status)
        answer = script.votes(body, len(script.chats()))
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = "late"
        if isinstance(answer, dict):
            return answer
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]}

    @app.post("/tokenize", response_model=None)
    async def tokenize(request: Request) -> Any:
        body = await body_of(request)
        return failure(body) or {"tokens": render(body["messages"])}

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Any:
        body = await body_of(request)
        if (failed := failure(body)) is not None:
            return failed
        ids, asked = body["prompt"], body["prompt_logprobs"]
        if asked > script.widest:
            return JSONResponse({"error": {"message": f"{asked} is greater than max allowed"}}, 400)
        entries: list[Any] = [None]
        for position in range(1, len(ids)):
            order = ranked(ids[:position]) if asked else []
            rank = 1 + (order.index(ids[position]) if asked else 0)
            told = dict.fromkeys([ids[position], *order[:asked]])
            entries.append(
                {
                    str(token): {
                        "logprob": logprob(ids[:position], token),
                        "rank": rank if token == ids[position] else 1 + order.index(token),
                        "decoded_token": "",
                    }
                    for token in told
                }
            )
        return {"choices": [{"index": 0, "text": "", "prompt_logprobs": entries}]}

    return app


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def put_turn(
    ledger: Ledger,
    said: str | list[dict[str, Any]] | None = "Please write it without bold.",
    *,
    request: str = "What is 5 plus 7?",
    reply: str = "**Final answer:** 12",
    provenance: list[str] | None = None,
    **values: Any,
) -> str:
    """A trainable main turn with its next state; returns its id."""
    messages = [{"role": "user", "content": request}]
    completion = [ord(one) for one in reply]
    defaults: dict[str, Any] = {
        "completion_id": new_id("chatcmpl"),
        "messages": messages,
        "provenance": ["owner"],
        "sampling": {"temperature": 1.0},
        "response": {"role": "assistant", "content": reply},
        "prompt_ids": render(messages),
        "completion_ids": completion,
        "logprobs": [
            logprob(render(messages) + completion[:position], token) for position, token in enumerate(completion)
        ],
        "trainable": True,
        "policy_version": 0,
    }
    turn = schema.Turn(session_id="", **(defaults | values))
    with ledger.transaction() as tx:
        turn.session_id = turns.get_or_create_session(
            tx, owner="local", external_id="s", identity_source="header", now=time.time()
        ).id
        turns.add(tx, turn)
        if said is not None:
            state = [{"role": "user", "content": said}] if isinstance(said, str) else said
            who = provenance or ["owner" if one["role"] == "user" else one["role"] for one in state]
            turns.set_next_state(tx, turn.id, state, who, None, time.time())
    return turn.id


def judged_turn(
    said: str | list[tuple[str, dict[str, Any]]] = "",
    *,
    request: str = "What is 5 plus 7?",
    reply: str = "**Final answer:** 12",
    feedback: list[FeedbackItem] | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> JudgedTurn:
    """A turn as judges see it, without a ledger."""
    state = [("owner", {"role": "user", "content": said})] if isinstance(said, str) and said else said or []
    return JudgedTurn(
        turn_id="turn_1",
        session_id="session_1",
        messages=({"role": "user", "content": request},),
        tools=tools,
        response={"role": "assistant", "content": reply},
        next_state=tuple(message for _, message in state),  # type: ignore[misc]
        next_state_provenance=tuple(source for source, _ in state),  # type: ignore[misc]
        feedback=tuple(feedback or ()),
        policy_version=0,
    )


def close(one: float, other: float, tolerance: float = 1e-3) -> bool:
    return math.isclose(one, other, abs_tol=tolerance)
