"""Whole models exchanged in place on a real vLLM server, under the gateway, while requests are in flight.

What each token's version is, is checked against the model: its log-prob, computed anew with transformers under the
version that the turn names, is the one that was stored; under the versions before and after it is not.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from engine_server import VLLM, Server, start_engine, stop_engine
from gateway_rig import Rig, running, sse, wait_until
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.ledger import Ledger, events, policies, schema
from clawrl_trl.policies import Candidate, FirstGate, PolicyStore, Publisher
from clawrl_trl.policies.checksums import compute_digest, list_weight_files

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("vllm updates")]

VERSIONS = 4
CHAT = "/v1/chat/completions"
LONG = {"ignore_eos": True, "max_tokens": 80}
TOLERANCE = 2e-3
"""Largest difference of log-probs between two programs that compute in float32."""


def build_models(base: Path, folder: Path, *, tied: bool) -> None:
    """A base model and versions of it, with or without tied embeddings, each clearly another distribution."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, tie_word_embeddings=tied)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    tokenizer = AutoTokenizer.from_pretrained(base)
    for version in range(VERSIONS + 1):
        model.save_pretrained(folder / str(version))
        tokenizer.save_pretrained(folder / str(version))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)


class Models:
    """The versions on disk, and what they think of tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[int, Any] = {}

    def __getitem__(self, version: int) -> Path:
        return self.folder / str(version)

    def use(self, version: int, model: Any) -> None:
        """Let a model of another making be a version."""
        self._loaded[version] = model.eval()

    @torch.no_grad()
    def logprobs(self, turn: schema.Turn, version: int) -> Any:
        """Log-probs of a turn's completion under a version, shape `(completion,)`."""
        if version not in self._loaded:
            self.use(version, AutoModelForCausalLM.from_pretrained(self[version], dtype=torch.float32))
        assert turn.prompt_ids is not None and turn.completion_ids is not None
        ids = torch.tensor([[*turn.prompt_ids.tolist(), *turn.completion_ids.tolist()]])
        logits = self._loaded[version](ids).logits[0, len(turn.prompt_ids) - 1 : -1]
        chosen = torch.tensor(turn.completion_ids)[:, None]
        return logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()

    def check(self, turn: schema.Turn) -> set[int]:
        """Assert that each token is of the version that the turn says; returns those versions."""
        assert turn.trainable and turn.logprobs is not None, turn.untrainable_reason
        versions = turn.token_versions
        if versions is None:
            versions = np.full(len(turn.logprobs), turn.policy_version)
        assert turn.policy_version == min(versions)
        for version in set(versions.tolist()):
            mine = versions == version
            gap = np.abs(self.logprobs(turn, version) - turn.logprobs)[mine]
            assert gap.max() < TOLERANCE, f"{turn.id}, version {version}: {gap.max()}"
        return set(versions.tolist())

    def explained_by_one(self, turn: schema.Turn) -> bool:
        """Whether any single version would have all of a turn's log-probs."""
        assert turn.logprobs is not None
        gaps = [np.abs(self.logprobs(turn, version) - turn.logprobs).max() for version in range(VERSIONS + 1)]
        return bool(min(gaps) < TOLERANCE)


@pytest.fixture(scope="module", params=["tied", "untied"])
def models(model_folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Models:
    folder = tmp_path_factory.mktemp(request.param)
    build_models(model_folder / "base", folder, tied=request.param == "tied")
    return Models(folder)


@pytest.fixture(scope="module")
def own(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of these tests' own: exchanging its model would disturb all others."""
    process, started = start_engine(
        tmp_path_factory.mktemp("run"),
        VLLM,
        model_name_or_path=str(models[0]),
        max_model_len=512,
        vllm_max_lora_rank=8,
    )
    yield started
    stop_engine(process)


@pytest.fixture
def rig(own: Server, tmp_path: Path) -> Iterator[Rig]:
    """A gateway over the server, which holds its first model again afterwards."""
    client = EngineClient(own.base_url, own.key, timeout=240)
    address: Any = {"engine_url": own.base_url, "engine_client": client}
    with running(tmp_path / "run", patience_s=30, max_model_len=512, **address) as rig:
        yield rig
    with own.http() as http:
        http.post("/v1/policy", json={"name": "base"}).raise_for_status()
        for name in [card["id"] for card in http.get("/v1/models").json()["data"] if card.get("parent")]:
            http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def publish(ledger: Ledger, version: int, folder: Path, kind: str = "full", *, written_as: Path | None = None) -> None:
    """Let a version serve, as far as the ledger is concerned; its weights are noted as those of `written_as`."""
    sha256 = compute_digest(*list_weight_files(written_as or folder))
    with ledger.transaction() as tx:
        if policies.get(tx, version) is None:
            parent = policies.serving(tx).version
            policies.add(tx, schema.Policy(version=version, parent=parent, path=str(folder), sha256=sha256, kind=kind))
        policies.promote(tx, version)


def serves(rig: Rig, version: int) -> None:
    wait_until(lambda: rig.gateway.policies.serving.number == version, patience_s=120)


class Clients:
    """Clients that ask one thing after the other, streamed, plain and several at once, until they are told to stop."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.done = asyncio.Event()
        self.events = 0
        self.replies = 0
        self.failed = False

    async def run(self, count: int) -> None:
        async with httpx.AsyncClient(base_url=self.rig.root, timeout=240, trust_env=False) as http:
            try:
                await asyncio.gather(*(self._keep_asking(http, number) for number in range(count)))
            except BaseException:
                self.failed = True
                raise

    async def _keep_asking(self, http: httpx.AsyncClient, number: int) -> None:
        kinds = [self._streamed, self._plain, self._several]
        while not self.done.is_set():
            await kinds[number % 3](http, f"question {number}")
            self.replies += 1

    async def _streamed(self, http: httpx.AsyncClient, text: str) -> None:
        body = {"messages": [{"role": "user", "content": text}], "stream": True, **LONG}
        async with http.stream("POST", CHAT, json=body) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in self._counted(response)]
        assert lines[-1] == "data: [DONE]"
        assert not any("error" in event for event in sse("\n".join(lines)))

    async def _counted(self, response: httpx.Response) -> Any:
        async for line in response.aiter_lines():
            if line:
                self.events += 1
                yield line

    async def _plain(self, http: httpx.AsyncClient, text: str) -> None:
        answer = await http.post(CHAT, json={"messages": [{"role": "user", "content": text}], **LONG})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == LONG["max_tokens"]

    async def _several(self, http: httpx.AsyncClient, text: str) -> None:
        answer = await http.post("/v1/completions", json={"prompt": [text, "Once"], "n": 2, **LONG})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"]) == 4

    async def more(self, events: int, replies: int) -> None:
        """Wait until that much more has been streamed and answered, or a client has failed."""
        wanted = self.events + events, self.replies + replies

        def there() -> bool:
            return self.failed or (self.events >= wanted[0] and self.replies >= wanted[1])

        await asyncio.to_thread(wait_until, there, 240)


async def test_requests_in_flight_go_on_through_exchanges(rig: Rig, models: Models) -> None:
    clients = Clients(rig)
    running = asyncio.create_task(clients.run(9))
    order = [*range(1, VERSIONS + 1), 2, 0]
    for version in order:
        await clients.more(events=40, replies=1)
        publish(rig.ledger, version, models[version])
        await asyncio.to_thread(serves, rig, version)
    await clients.more(events=40, replies=1)
    clients.done.set()
    await running
    wait_until(lambda: rig.gateway.in_flight == 0)
    turns = rig.turns()
    seen = [models.check(turn) for turn in turns]
    assert set().union(*seen) == set(range(VERSIONS + 1))
    mixed = [turn for turn, versions in zip(turns, seen, strict=True) if len(versions) > 1]
    assert {turn.choice_index for turn in mixed} == {0, 1, 2, 3}
    assert all(turn.finish_reason == "length" and len(turn.completion_ids) == LONG["max_tokens"] for turn in turns)
    by_one = [models.explained_by_one(turn) for turn in mixed[:8]]
    assert sum(by_one) <= len(by_one) / 4  # what was asserted does tell versions apart


def ask(rig: Rig, model: str = "clawrl") -> httpx.Response:
    with rig.client() as http:
        return http.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "model": model, **LONG})


def test_only_what_is_in_the_engine_can_be_asked_for(rig: Rig, models: Models, model_folder: Path) -> None:
    def names() -> list[str]:
        with rig.client() as http:
            return [card["id"] for card in http.get("/v1/models").json()["data"]]

    for version in (1, 2):
        publish(rig.ledger, version, models[version])
        serves(rig, version)
    assert names() == ["clawrl", "policy-v2"]
    for gone in ("base", "policy-v1", "policy"):
        refused = ask(rig, gone)
        assert refused.status_code == 404 and "there are: clawrl, policy-v2." in refused.json()["error"]["message"]
    assert ask(rig, "policy-v2").status_code == 200
    publish(rig.ledger, 0, models[0])
    serves(rig, 0)
    assert names() == ["clawrl", "base"]
    adapter = models.folder / "adapter"
    models.use(9, make_adapter(models[0], adapter))
    publish(rig.ledger, 9, adapter, kind="adapter")
    serves(rig, 9)
    assert names() == ["clawrl", "base", "policy-v9"]
    assert ask(rig, "base").status_code == ask(rig).status_code == 200
    publish(rig.ledger, 1, models[1])
    serves(rig, 1)
    assert names() == ["clawrl", "policy-v1"] and ask(rig).status_code == 200
    assert [models.check(turn) for turn in rig.turns()] == [{2}, {0}, {9}, {1}]


def make_adapter(base: Path, folder: Path, **options: Any) -> PeftModel:
    """An adapter on a model that changes its mind, saved; returns the adapted model."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", **options))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)
    return adapted


async def test_an_adapter_whose_base_is_exchanged_under_it(rig: Rig, models: Models) -> None:
    """What it samples from then on is no version's: the reply is finished, and not trained on."""
    adapter = models.folder / "adapter-under"
    make_adapter(models[0], adapter)
    publish(rig.ledger, 9, adapter, kind="adapter")
    await asyncio.to_thread(serves, rig, 9)
    clients = Clients(rig)
    running = asyncio.create_task(clients.run(6))
    await clients.more(events=20, replies=0)
    publish(rig.ledger, 1, models[1])
    await asyncio.to_thread(serves, rig, 1)
    clients.done.set()
    await running
    wait_until(lambda: rig.gateway.in_flight == 0)
    reasons = {turn.untrainable_reason for turn in rig.turns()}
    assert "the weights under its adapter were exchanged" in reasons


@pytest.mark.parametrize("options", [{"use_dora": True}, {"bias": "all"}])
def test_what_is_no_plain_adapter_is_served_merged(
    rig: Rig, own: Server, models: Models, tmp_path: Path, options: dict[str, Any]
) -> None:
    store = PolicyStore(tmp_path / "policies")
    folder = store.begin(7)
    models.use(7, make_adapter(models[0], folder, **options))
    fresh = AutoModelForCausalLM.from_pretrained(models[0], dtype=torch.float32)
    PeftModel.from_pretrained(fresh, folder).merge_and_unload().save_pretrained(folder / "merged")
    final = store.finish(7)
    with rig.ledger.transaction() as tx:
        row = schema.Policy(version=7, parent=0, path=str(final), sha256=store.sha256(7), kind="full")
        policies.add(tx, row)
    with SyncEngineClient(own.base_url, own.key, timeout=240) as engine:
        publisher = Publisher(rig.ledger, store, engine=engine, gate=FirstGate(max_kl=None))
        assert publisher.find_merge_reason({"peft_type": "LORA", **options}, []) is not None
        assert publisher.publish(Candidate(7, final)) == "serving"
    serves(rig, 7)
    assert ask(rig).status_code == 200
    assert models.check(rig.turn()) == {7}


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def _cut_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.down_proj.weight"] = weights["model.layers.1.mlp.down_proj.weight"][:, :7].contiguous()
    save_file(weights, path)


def _unknown_tensor(folder: Path) -> None:
    """Nothing is wrong until the workers meet it, half-way."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.unknown_proj.weight"] = weights.pop("model.layers.1.mlp.down_proj.weight")
    save_file(weights, path)


def _other_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "damage", [_truncated, _cut_tensor, _unknown_tensor, _other_shape, _no_weights, shutil.rmtree]
)
def test_a_folder_that_cannot_be_loaded_leaves_the_old_model(
    rig: Rig, models: Models, tmp_path: Path, damage: Any
) -> None:
    publish(rig.ledger, 1, models[1])
    serves(rig, 1)
    broken = tmp_path / "broken"
    shutil.copytree(models[2], broken)
    damage(broken)
    publish(rig.ledger, 2, broken, written_as=models[2] if damage in (_no_weights, shutil.rmtree) else None)

    def refused() -> bool:
        with rig.ledger.reader() as tx:
            failed = any(event.kind == "policy_load_failed" for event in events.of(tx, "2"))
            return failed or policies.get(tx, 2).state == "rejected"

    wait_until(refused, patience_s=120)
    assert ask(rig).status_code == 200
    assert models.check(rig.turn()) == {1}
    publish(rig.ledger, 3, models[3])
    serves(rig, 3)
    assert ask(rig).status_code == 200
    assert models.check(rig.turns()[-1]) == {3}
