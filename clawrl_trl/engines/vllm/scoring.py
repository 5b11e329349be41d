"""Scores of given tokens from our vLLM server, as packed arrays (`engines.scores` has the client's half).

vLLM answers a request for `prompt_logprobs` with an object for each token of the prompt and each candidate, its text
included, written as JSON by the process that serves every chat. Here the arrays that come from vLLM's workers are kept
as they are, and only the rows of the scored tokens are sent. Such calls have a lower priority than chats.
"""

import uuid
from typing import Annotated

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from clawrl_trl.engines.scores import SCORES_PATH, pack_scores
from clawrl_trl.engines.vllm.compat import ApiServer, RequestState, divert_prompt_logprobs
from clawrl_trl.http.disconnect import run_unless_gone

PRIORITY = 1
"""Of scoring calls; a chat has 0 and comes first. vLLM starts what has waited longest among equals."""


class ScoresBody(BaseModel):
    """Body of a call.

    Attributes:
        model (`str`): Name of the base model or of an adapter.
        prompt (`list[int]`): Token ids, the context's and behind them the scored ones.
        start (`int`): Number of tokens of the context.
        top_k (`int`, defaults to 0): Most likely tokens to name at each position.
    """

    model_config = ConfigDict(strict=True)

    model: str
    prompt: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2)]
    start: Annotated[int, Field(ge=1)]
    top_k: Annotated[int, Field(ge=0)] = 0


class ScoredRows:
    """The rows of the scored tokens, taken from the arrays of a whole prompt as they arrive.

    Args:
        start (`int`): Position of the first scored token in the prompt.
    """

    def __init__(self, start: int) -> None:
        # The first token of a prompt has no row.
        self._skip = start - 1
        self._ids: list[NDArray[np.int32]] = []
        self._logprobs: list[NDArray[np.float32]] = []

    def take(self, ids: NDArray[np.integer], logprobs: NDArray[np.floating]) -> None:
        """Take the arrays of the next tokens of the prompt, of shape `(tokens, 1 + top_k)`, the token itself first."""
        rows = max(self._skip, 0)
        self._skip -= len(ids)
        self._ids.append(ids[rows:].astype(np.int32))
        self._logprobs.append(logprobs[rows:].astype(np.float32))

    def pack(self, count: int) -> dict[str, str | int]:
        """Pack the rows into an answer.

        Raises:
            RuntimeError: If they are not as many as there are scored tokens.
        """
        rows = sum(map(len, self._ids))
        if rows != count:
            raise RuntimeError(f"vLLM scored {rows} of {count} tokens")
        ids, logprobs = np.concatenate(self._ids), np.concatenate(self._logprobs)
        return pack_scores(logprobs[:, 0], ids[:, 1:], logprobs[:, 1:])


class PromptScorer:
    """Scores prompts on one server.

    Args:
        server (`ApiServer`): The server.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._running: dict[str, ScoredRows] = {}
        server.watch_requests(self._divert)

    def _divert(self, request: RequestState, constrained: bool) -> None:
        rows = self._running.get(request.external_req_id)
        if rows is not None:
            divert_prompt_logprobs(request, rows.take)

    async def score(self, body: ScoresBody) -> JSONResponse:
        """Answer a call."""
        count = len(body.prompt) - body.start
        if count < 1:
            return _refuse(f"start is {body.start}, the prompt has {len(body.prompt)} tokens", 400, "start")
        exchanges = self._server.exchanges
        try:
            adapter = self._server.find_adapter(body.model)
        except LookupError:
            return _refuse(f"The model `{body.model}` does not exist.", 404, "model")
        request_id, rows = f"scores-{uuid.uuid4().hex}", ScoredRows(body.start)
        self._running[request_id] = rows
        try:
            await self._server.read_prompt(request_id, body.prompt, body.top_k, adapter, PRIORITY)
        finally:
            del self._running[request_id]
        if self._server.exchanges != exchanges:
            # A part of the prompt, or all of it, was read by another model than the one that was named.
            return _refuse("The model was exchanged during the call: try again.", 503, "model")
        return JSONResponse(rows.pack(count))


def _refuse(message: str, status: int, param: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "param": param, "code": status}}, status)


def add_scoring_route(app: FastAPI, server: ApiServer) -> None:
    """Let a server answer scoring calls."""
    scorer = PromptScorer(server)

    async def score(body: ScoresBody, request: Request) -> JSONResponse:
        # A call whose client has gone would go on reading its prompt.
        return await run_unless_gone(request, scorer.score(body))  # type: ignore[return-value]

    app.add_api_route(SCORES_PATH, score, methods=["POST"], response_model=None)
