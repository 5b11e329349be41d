"""Judge and teacher on a real vLLM server: its base model, beside an adapter that serves."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import build_adapter
from engine_server import VLLM, Server, start_engine, stop_engine
from peft import PeftModel
from transformers import AutoModelForCausalLM

pytest.register_assert_rewrite("teaching")

from teaching import REQUESTS, check, judge, list_taught_samples, log_probs, sample  # noqa: E402

from clawrl_trl.engines.client import EngineClient, EngineError  # noqa: E402
from clawrl_trl.engines.scores import make_plain_call, read_plain  # noqa: E402
from clawrl_trl.judge.llm_judge import LLMJudge, find_plurality  # noqa: E402
from clawrl_trl.judge.rules import RulesJudge  # noqa: E402
from clawrl_trl.ledger import Ledger, turns  # noqa: E402
from clawrl_trl.ledger.schema import Turn  # noqa: E402
from clawrl_trl.tiny import MODEL_PATH  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("vllm teacher")]

VERSION, K = 1, 4


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / f"policy-v{VERSION}"
    build_adapter(MODEL_PATH, folder, seed=5)
    return folder


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory, adapter: Path) -> Iterator[Server]:
    """A server of the bundled model, whose base can follow a hint, with an adapter loaded."""
    run = tmp_path_factory.mktemp("judge-run")
    process, started = start_engine(
        run, VLLM, model_name_or_path=str(MODEL_PATH), max_model_len=2048, vllm_max_lora_rank=8
    )
    with started.http() as http:
        body = {"lora_name": f"policy-v{VERSION}", "lora_path": str(adapter)}
        http.post("/v1/load_lora_adapter", json=body).raise_for_status()
    yield started
    stop_engine(process)


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def policy(adapter: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).eval()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()


def client(server: Server) -> EngineClient:
    return EngineClient(server.base_url, server.key, timeout=120)


async def busy(engine: EngineClient, stop: asyncio.Event) -> int:
    """Keep the adapter generating until told to stop; returns how many replies it gave."""
    count = 0
    while not stop.is_set():
        turn = await sample(engine, REQUESTS[count % len(REQUESTS)], VERSION, max_tokens=16)
        count += bool(len(turn.completion_ids))  # type: ignore[arg-type]
    return count


async def test_prompt_log_probs_line_up_with_the_scored_tokens(bundled: Server, base: Any, policy: Any) -> None:
    """Also the most likely tokens, as many as an engine of ours tells, under base and adapter at once."""
    async with client(bundled) as engine:
        turn = await sample(engine, REQUESTS[0], VERSION, seed=1)
        prompt, completion = turn.prompt_ids, list(turn.completion_ids)  # type: ignore[arg-type]
        wide = await asyncio.gather(
            *(
                engine.prompt_logprobs(prompt, completion, model=name, top_k=128)  # type: ignore[arg-type]
                for name in ("base", f"policy-v{VERSION}")
            )
        )
        with pytest.raises(EngineError, match="128"):
            await engine.prompt_logprobs(prompt, completion, top_k=129)  # type: ignore[arg-type]
    turn.completion_ids = torch.tensor(completion).numpy()
    for found, model in zip(wide, (base, policy), strict=True):
        dense = log_probs(model, turn)
        expected = dense.gather(1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found.logprobs), expected, rtol=0, atol=5e-3)
        for position, top in enumerate(found.top):
            ids = torch.tensor(list(top))
            assert 128 <= len(ids) <= 129, "with the sampled token, where it ties with the last"
            torch.testing.assert_close(torch.tensor(list(top.values())), dense[position, ids], rtol=0, atol=5e-3)
            assert dense[position, ids].min() > dense[position].topk(128).values[-1] - 5e-3
    tops = zip(wide[0].top, wide[1].top, strict=True)
    apart = max(abs(one[token] - other[token]) for one, other in tops for token in one.keys() & other.keys())
    assert apart > 0.1, "the adapter has a mind of its own"


async def test_packed_scores_are_those_of_vllms_own_dialect(bundled: Server) -> None:
    """Of base and adapter, at the ends of a prompt, beside chats; and what is refused is refused as there."""
    prompt = [5 + place % 200 for place in range(300)]
    async with client(bundled) as engine:
        for model, start, top_k in (("base", 1, 3), (f"policy-v{VERSION}", 250, 64), ("base", 299, 0)):
            context, scored = prompt[:start], prompt[start:]
            packed = await engine.prompt_logprobs(context, scored, model=model, top_k=top_k)
            reply = await engine._json(make_plain_call(context, scored, model, top_k))
            plain = read_plain(reply, start, scored, top_k)
            assert packed.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
            for ours, theirs in zip(packed.top, plain.top, strict=True):
                shared = ours.keys() & theirs.keys()
                assert len(ours) == top_k and len(shared) >= top_k - 1, "the last two may be equally likely"
                assert [ours[token] for token in shared] == pytest.approx(
                    [theirs[token] for token in shared], abs=1e-4
                )
        for context, scored, model, status in (
            ([5], [6], "policy-v99", 404),
            ([5], [10**7], "base", 400),
            ([5] * 4000, [6], "base", 400),
        ):
            with pytest.raises(EngineError) as caught:
                await engine.prompt_logprobs(context, scored, model=model)
            assert caught.value.status == status
        assert engine._plain is None, "it was always asked on the packed route"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_hints_and_candidates_while_the_adapter_serves(
    bundled: Server, ledger: Ledger, base: Any, policy: Any, temperature: float
) -> None:
    stop = asyncio.Event()
    async with client(bundled) as engine:
        sampled = [
            await sample(engine, request, VERSION, seed=seed, temperature=temperature)
            for seed, request in enumerate(REQUESTS)
        ]
        serving = asyncio.create_task(busy(engine, stop))
        await judge(ledger, engine, sampled, RulesJudge(), K)
        stop.set()
        assert await serving > 0
    rows = list_taught_samples(ledger)
    assert len(rows) == len(REQUESTS)
    known = [check(policy, base, K, *row) for row in rows]
    assert min(known) > 0.5


async def test_votes_of_the_base_model_beside_the_adapter(bundled: Server, ledger: Ledger) -> None:
    """Structured output makes a small model begin every vote as it should; a hint without end is no valid vote."""
    stop = asyncio.Event()
    async with client(bundled) as engine:
        sampled = [await sample(engine, request, VERSION) for request in REQUESTS]
        serving = asyncio.create_task(busy(engine, stop))
        await judge(ledger, engine, sampled, LLMJudge(engine, model="base", votes=3, max_tokens=128), K)
        stop.set()
        assert await serving > 0
    with ledger.reader() as tx:
        verdicts = [turns.verdict_of(tx, turn.id) for turn in tx.query(Turn)]
    assert len(verdicts) == len(REQUESTS)
    for verdict in verdicts:
        assert verdict is not None and verdict.judge == "llm:base"
        assert len(verdict.votes) == 3
        for vote in verdict.votes:
            begun = re.match(r'\s*\{\s*"score"\s*:\s*(-1|0|1)\s*[,}]', vote["raw"])
            assert begun and vote["score"] in (None, int(begun[1])), vote["raw"]
        score, reason = find_plurality([vote["score"] for vote in verdict.votes])
        assert (verdict.score, verdict.detail.get("reason")) == (score, reason)
