"""Packed scores from our vLLM server, with an engine in vLLM's place that hands over arrays in chunks."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.engines.errors import EngineError
from clawrl_trl.engines.scores import SCORES_PATH, make_packed_call, read_packed
from clawrl_trl.engines.vllm import compat
from clawrl_trl.engines.vllm.compat import ApiServer, VLLMVersionError, divert_prompt_logprobs
from clawrl_trl.engines.vllm.scoring import ScoredRows, add_scoring_route

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
CHUNK = 4


def arrays(prompt: list[int], top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probs of a prompt's tokens but the first, the token's own in front."""
    rows = torch.arange(1, len(prompt))[:, None]
    ids = torch.cat([torch.tensor(prompt[1:])[:, None], 100 * rows + torch.arange(top_k)], dim=1)
    return ids, -(ids.float() + rows / 100)


class FakeVLLM:
    """vLLM's engine client, as far as scoring looks at it: one request at a time."""

    def __init__(self) -> None:
        self.model_config: Any = None
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=1))
        self.engine_core = SimpleNamespace(outputs_queue=asyncio.Queue())
        self.output_processor = SimpleNamespace(request_states={}, add_request=self._add)
        self.asked: list[dict[str, Any]] = []
        self.objects = 0
        self.dropped = 0
        self.exchange: Any = None

    def pause_generation(self) -> None: ...
    def resume_generation(self) -> None: ...
    def collective_rpc(self) -> None: ...

    def _add(self, asked: Any) -> None:
        def make_objects(tensors: Any) -> None:
            self.objects += 1

        self.output_processor.request_states[asked.request_id] = SimpleNamespace(
            external_req_id=asked.external,
            request_index=0,
            parent_req=None,
            lora_name=None,
            detokenizer=None,
            logprobs_processor=SimpleNamespace(_update_prompt_logprobs=make_objects, prompt_logprobs=[]),
        )

    async def generate(self, rendered: Any, parameters: Any, request_id: str, **options: Any) -> AsyncIterator[int]:
        self.asked.append(options | {"parameters": parameters})
        prompt = rendered["prompt_token_ids"]
        # Beside a request of somebody else's, whose log-probs are none of ours.
        names = (("other", "chatcmpl-1"), ("ours", request_id))
        for inner, external in names:
            self.output_processor.add_request(SimpleNamespace(request_id=inner, external=external))
        ids, logprobs = arrays(prompt, parameters.prompt_logprobs)
        for begin in range(0, len(ids) - self.dropped, CHUNK):
            chunk = (ids[begin : begin + CHUNK], logprobs[begin : begin + CHUNK], None, None)
            for state in self.output_processor.request_states.values():
                state.logprobs_processor._update_prompt_logprobs(chunk)
        if self.exchange is not None:
            self.exchange()
        self.output_processor.request_states.clear()
        yield 1


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> FakeVLLM:
    monkeypatch.setitem(
        sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **fields: SimpleNamespace(**fields))
    )
    monkeypatch.setattr(compat, "warn_if_untried", lambda: None)
    return FakeVLLM()


@pytest.fixture
def server(vllm: FakeVLLM) -> ApiServer:
    models = SimpleNamespace(
        base_model_paths=[SimpleNamespace(name="base"), SimpleNamespace(name="policy")],
        lora_requests={"policy-v9": "the adapter"},
    )
    return ApiServer(SimpleNamespace(engine_client=vllm, openai_serving_models=models))


@pytest.fixture
def http(server: ApiServer) -> TestClient:
    app = FastAPI()
    add_scoring_route(app, server)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("start", [1, 4, 5, 6, 9])
def test_the_rows_of_the_scored_tokens_come_back(http: TestClient, vllm: FakeVLLM, start: int, top_k: int) -> None:
    scored = PROMPT[start:]
    reply = http.post(SCORES_PATH, json=make_packed_call(PROMPT[:start], scored, "base", top_k).body)
    scores = read_packed(reply.json(), scored, top_k)
    for position, token in enumerate(scored, start):
        row = -position / 100
        assert scores.logprobs[position - start] == pytest.approx(row - token)
        expected = {100 * position + slot: row - 100 * position - slot for slot in range(top_k)}
        assert scores.top[position - start] == pytest.approx(expected)
    assert vllm.objects == 3, "another's request is answered as ever, and no object is made of ours"
    assert vllm.asked[0]["priority"] == 1, "behind chats"


@pytest.mark.parametrize(("model", "adapter"), [("base", None), ("policy", None), ("policy-v9", "the adapter")])
def test_a_name_is_a_model_or_an_adapter(http: TestClient, vllm: FakeVLLM, model: str, adapter: str | None) -> None:
    assert http.post(SCORES_PATH, json={"model": model, "prompt": PROMPT, "start": 3}).status_code == 200
    assert vllm.asked[0]["lora_request"] == adapter


def test_a_model_that_is_not_there_is_told_from_a_missing_route(http: TestClient) -> None:
    reply = http.post(SCORES_PATH, json={"model": "policy-v8", "prompt": PROMPT, "start": 3})
    assert reply.status_code == 404 and reply.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    "change", [{"start": 10}, {"start": 0}, {"prompt": [1]}, {"prompt": [1, -1]}, {"prompt": ["1", 2]}, {"top_k": -1}]
)
def test_what_can_not_be_scored_is_refused(http: TestClient, vllm: FakeVLLM, change: dict[str, Any]) -> None:
    reply = http.post(SCORES_PATH, json={"model": "base", "prompt": PROMPT, "start": 3} | change)
    assert reply.status_code in (400, 422) and not vllm.asked


def test_rows_that_are_missing_are_a_fault(http: TestClient, vllm: FakeVLLM) -> None:
    vllm.dropped = CHUNK
    assert http.post(SCORES_PATH, json={"model": "base", "prompt": PROMPT, "start": 3}).status_code == 500


def test_a_call_into_which_an_exchange_falls_is_to_be_sent_again(
    http: TestClient, vllm: FakeVLLM, server: ApiServer
) -> None:
    vllm.exchange = lambda: server.rename_model(["policy-v2", "policy"], Path("two"))
    call = {"model": "policy", "prompt": PROMPT, "start": 3}
    reply = http.post(SCORES_PATH, json=call)
    refused = EngineError(reply.status_code, reply.json()["error"]["message"])
    assert refused.status == 503 and refused.retryable and refused.away
    vllm.exchange = None
    assert http.post(SCORES_PATH, json=call).status_code == 200


def test_a_request_without_the_names_says_so() -> None:
    with pytest.raises(VLLMVersionError, match="_update_prompt_logprobs"):
        divert_prompt_logprobs(SimpleNamespace(logprobs_processor=SimpleNamespace()), print)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.data())
def test_chunks_do_not_matter(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    start = data.draw(st.integers(1, total))
    ids = np.arange(2 * total).reshape(total, 2)
    rows, begin = ScoredRows(start), 0
    for size in sizes:
        rows.take(ids[begin : begin + size], -ids[begin : begin + size].astype(np.float32))
        begin += size
    scores = read_packed(rows.pack(total - start + 1), range(total - start + 1), 1)
    kept = ids[start - 1 :]
    assert scores.logprobs == [-float(row[0]) for row in kept]
    assert scores.top == [{int(row[1]): -float(row[1])} for row in kept]
