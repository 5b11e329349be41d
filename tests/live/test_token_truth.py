"""What the ledger holds is what was sampled: recomputed log-probs, decoded text, exact ids."""

import json
from typing import Any

import httpx
import pytest
import torch
from live_run import LiveRun, wait_for
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.ledger import Ledger, batches, policies, turns
from clawrl_trl.ledger.schema import Policy, Turn
from clawrl_trl.policies.checksums import compute_digest, list_weight_files
from clawrl_trl.tiny import MODEL_PATH

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.slow]

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
QUESTION = "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now?"


@pytest.fixture(scope="module")
def adapter(live: LiveRun, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Publish an adapter that differs from the base, as a trainer would; returns its version."""
    folder = tmp_path_factory.mktemp("policy-v1")
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(0.2)
    model.save_pretrained(folder)
    ledger = Ledger.open(live.folder.ledger)
    with ledger.transaction() as tx:
        batches.commit(
            tx, [], Policy(version=1, parent=0, path=str(folder), sha256=compute_digest(*list_weight_files(folder)))
        )
    settings = ServeSettings.load(live.folder.path)
    with SyncEngineClient.of_run(live.folder, settings) as engine:
        engine.load_adapter("policy-v1", folder)
    with ledger.transaction() as tx:
        policies.promote(tx, 1)
    ledger.close()
    with live.client() as client:
        wait_for(lambda: "policy-v1" in [model.id for model in client.models.list()], 30, "the gateway's switch")
    return 1


def _turn(live: LiveRun, turn_id: str) -> Turn:
    ledger = Ledger.open(live.folder.ledger)
    with ledger.reader() as tx:
        turn = turns.get(tx, turn_id)
    ledger.close()
    assert turn is not None
    return turn


def _ask(live: LiveRun, stream: bool, **body: Any) -> tuple[str, dict[str, Any]]:
    """Send a request and return the turn's id and the assembled message."""
    body = {"stream": stream, "max_tokens": 200, **body}
    if not stream:
        response = httpx.post(f"{live.base_url}/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response.headers["x-clawrl-turn-id"], response.json()["choices"][0]["message"]
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    with httpx.stream("POST", f"{live.base_url}/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                message["reasoning_content"] += delta.get("reasoning_content") or ""
                for call in delta.get("tool_calls") or []:
                    if call["index"] == len(message["tool_calls"]):
                        message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
                    for name, piece in call["function"].items():
                        message["tool_calls"][call["index"]]["function"][name] += piece or ""
        return response.headers["x-clawrl-turn-id"], message


def _recomputed(turn: Turn) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32)
    if turn.policy_version:
        ledger_path = turn_path[turn.policy_version]
        model = PeftModel.from_pretrained(model, ledger_path)
    assert turn.prompt_ids is not None and turn.completion_ids is not None
    ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]], dtype=torch.long)
    with torch.no_grad():
        logits = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float()
    temperature = turn.sampling.get("temperature") or 1.0
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, ids[0, len(turn.prompt_ids) :, None])[:, 0]


turn_path: dict[int, str] = {}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("model", ["base", "policy-v1", "clawrl"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text", {"messages": [{"role": "user", "content": QUESTION}]}),
        ("cold", {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.5}),
        (
            "tool",
            {
                "messages": [{"role": "user", "content": f"Use the calculator. {QUESTION}"}],
                "tools": [CALCULATOR],
            },
        ),
        (
            "reasoning",
            {
                "messages": [{"role": "user", "content": QUESTION}],
                "chat_template_kwargs": {"enable_thinking": True},
            },
        ),
    ],
)
def test_stored_tokens_are_the_sampled_ones(
    live: LiveRun, adapter: int, stream: bool, model: str, kind: str, body: dict[str, Any]
) -> None:
    ledger = Ledger.open(live.folder.ledger)
    with ledger.reader() as tx:
        turn_path.update({policy.version: policy.path for policy in policies.all(tx) if policy.path})
    ledger.close()
    turn_id, message = _ask(live, stream, model=model, seed=3, **body)
    turn = _turn(live, turn_id)
    if model != "clawrl":
        assert turn.policy_version == (0 if model == "base" else adapter)
    assert turn.logprobs is not None and turn.completion_ids is not None and turn.trainable
    assert torch.allclose(_recomputed(turn), torch.tensor(turn.logprobs), atol=1e-3)

    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    text = tokenizer.decode(turn.completion_ids, skip_special_tokens=False)
    parts = [message.get("reasoning_content") or "", message.get("content") or ""]
    for part in parts:
        assert part.strip() in text
    for call in message.get("tool_calls") or []:
        assert call["function"]["name"] in text
        arguments = json.loads(call["function"]["arguments"])
        assert all(json.dumps(value)[1:-1] in text for value in arguments.values())
    if kind == "text":
        assert tokenizer.decode(turn.completion_ids, skip_special_tokens=True) == message["content"]
    if kind == "reasoning" and "</think>" in text:
        assert message["reasoning_content"].strip()
        assert "<think>" not in (message["content"] or "")
