"""Policy folders, the gate, and publishing."""

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import fill, make_samples
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from clawrl_trl.credit import LedgerSource
from clawrl_trl.engines.kinds import adapter_obstacle
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Policy, Sample
from clawrl_trl.policies import Candidate, FirstGate, GateReport, PolicyStore, Publisher, rollback
from clawrl_trl.policy_names import name_policy, parse_policy_name
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer


def write_adapter(store: PolicyStore, version: int, value: float = 1.0) -> Path:
    folder = store.begin(version)
    save_file({"lora_A": torch.full((2, 2), value)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    (folder / "training_state" / "trainer_state.json").write_text("{}")
    return store.finish(version)


def add(ledger: Ledger, store: PolicyStore, version: int, parent: int) -> Candidate:
    folder = write_adapter(store, version)
    with ledger.transaction() as tx:
        policies.add(tx, Policy(version=version, parent=parent, path=str(folder), sha256=store.sha256(version)))
    return Candidate(version, folder)


def states(ledger: Ledger) -> dict[int, str]:
    with ledger.reader() as tx:
        return {policy.version: policy.state for policy in policies.all(tx)}


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "policies")


class TestPolicyStore:
    def test_names(self) -> None:
        assert name_policy(12) == "policy-v12"
        assert parse_policy_name("policy-v12") == 12
        assert parse_policy_name("policy-v12-old") is None

    def test_a_version_appears_whole_and_never_changes(self, store: PolicyStore) -> None:
        temporary = store.begin(1)
        assert not store.folder(1).exists()
        save_file({"a": torch.zeros(1)}, temporary / "adapter_model.safetensors")
        assert store.finish(1).is_dir()
        assert not temporary.exists()
        store.begin(1)
        with pytest.raises(FileExistsError):
            store.finish(1)

    def test_the_fingerprint_is_the_weights(self, store: PolicyStore) -> None:
        write_adapter(store, 1)
        write_adapter(store, 2)
        write_adapter(store, 3, value=2.0)
        assert store.sha256(1) == store.sha256(2) != store.sha256(3)

    def test_remains_of_an_interrupted_update_are_removed(self, store: PolicyStore) -> None:
        write_adapter(store, 1)
        write_adapter(store, 2)
        store.begin(3)
        (store.root / "notes").mkdir()
        assert sorted(store.clean_up([0, 1], 2)) == [".tmp-policy-v3", "policy-v2"]
        assert sorted(path.name for path in store.root.iterdir()) == ["notes", "policy-v1"]

    @pytest.mark.parametrize(("known", "leftover"), [([0], None), ([0], 1), ([0, 1], 2)])
    def test_versions_of_another_ledger_stay(self, store: PolicyStore, known: list[int], leftover: int | None) -> None:
        for version in (1, 2, 3):
            write_adapter(store, version)
        with pytest.raises(UserError, match=r"policy-v3.*another run folder"):
            store.clean_up(known, leftover)
        assert len(list(store.root.iterdir())) == 3

    def test_pruning_keeps_the_weights(self, store: PolicyStore) -> None:
        for version in (1, 2):
            write_adapter(store, version)
        assert store.prune([2]) == [1]
        assert store.training_state(1) is None and store.training_state(2) is not None
        assert (store.folder(1) / "adapter_model.safetensors").is_file()

    def test_a_training_state_that_can_not_be_removed_is_tried_again(
        self, store: PolicyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for version in (1, 2, 3):
            write_adapter(store, version)
        rmtree = shutil.rmtree

        def refuse(path: Path) -> None:
            if path.parent == store.folder(1):
                raise PermissionError(13, "Permission denied", str(path))
            rmtree(path)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            assert store.prune([3]) == [2]
        assert "training state of policy version 1" in caplog.text
        assert store.prune([3]) == [1]


class TestFirstGate:
    def test_passes_a_sound_adapter(self, store: PolicyStore) -> None:
        report = FirstGate().check(Candidate(1, write_adapter(store, 1), kl=0.3))
        assert report.passed and report.metrics == {"kl_to_base": 0.3}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_rejects_what_is_not_finite(self, store: PolicyStore, value: float) -> None:
        report = FirstGate().check(Candidate(1, write_adapter(store, 1, value)))
        assert not report.passed and "not finite" in str(report.reason)

    @pytest.mark.parametrize("kl", [9.0, float("nan"), float("inf")])
    def test_rejects_what_is_far_from_the_base(self, store: PolicyStore, kl: float) -> None:
        assert not FirstGate(max_kl=2.0).check(Candidate(1, write_adapter(store, 1), kl=kl)).passed

    def test_rejects_what_does_not_load(self, store: PolicyStore) -> None:
        folder = write_adapter(store, 1)
        (folder / "adapter_model.safetensors").write_bytes(b"no safetensors")
        assert "does not load" in str(FirstGate().check(Candidate(1, folder)).reason)
        (folder / "adapter_model.safetensors").unlink()
        assert "no weights" in str(FirstGate().check(Candidate(1, folder)).reason)

    def test_asks_a_further_check(self, store: PolicyStore) -> None:
        gate = FirstGate(also=lambda candidate: GateReport(False, "not today", {"mood": 0.0}))
        report = gate.check(Candidate(1, write_adapter(store, 1), kl=0.1))
        assert (report.passed, report.reason) == (False, "not today")
        assert report.metrics == {"kl_to_base": 0.1, "mood": 0.0}


class _Engine(http.server.BaseHTTPRequestHandler):
    loaded: list[str]
    exchanged: list[tuple[str, Path]]
    refuse = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = self.refuse or 200
        if not self.refuse:
            self.loaded.append(body["lora_name"])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "no such layer"}}' if self.refuse else b"{}")

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def _serving(handler: type[_Engine]) -> Iterator[SyncEngineClient]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with SyncEngineClient(f"http://127.0.0.1:{server.server_port}", timeout=10) as client:
        yield client
    server.shutdown()
    server.server_close()


@pytest.fixture
def engine() -> Iterator[tuple[type[_Engine], SyncEngineClient]]:
    handler = type("Engine", (_Engine,), {"loaded": []})
    with _serving(handler) as client:
        yield handler, client


class _VLLM(_Engine):
    """What a vLLM server says about itself; `in_place` is `None` for one that can't exchange its model."""

    in_place: int | None = 0

    def do_GET(self) -> None:
        answers: dict[str, Any] = {"/v1/models": {"data": [{"id": "base", "owned_by": "vllm"}]}}
        if self.in_place is not None:
            answers["/v1/policy"] = {"policy": "base", "version": self.in_place}
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path, {})).encode())

    def do_POST(self) -> None:
        if self.path != "/v1/policy":
            super().do_POST()
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.exchanged.append((body["name"], Path(body["folder"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture(params=[0, None])
def vllm(request: pytest.FixtureRequest) -> Iterator[tuple[type[_VLLM], SyncEngineClient]]:
    handler = type("VLLM", (_VLLM,), {"loaded": [], "exchanged": [], "in_place": request.param})
    with _serving(handler) as client:
        yield handler, client


class TestPublisher:
    def test_gate_engine_ledger(
        self, ledger: Ledger, store: PolicyStore, engine: tuple[type[_Engine], SyncEngineClient]
    ) -> None:
        handler, client = engine
        publisher = Publisher(ledger, store, engine=client)
        assert publisher.publish(add(ledger, store, 1, 0)) == "serving"
        assert publisher.publish(add(ledger, store, 2, 1)) == "serving"
        assert handler.loaded == ["policy-v1", "policy-v2"]
        assert states(ledger) == {0: "retired", 1: "retired", 2: "serving"}

    def test_a_rejected_version_never_reaches_the_engine(
        self, ledger: Ledger, store: PolicyStore, engine: tuple[type[_Engine], SyncEngineClient]
    ) -> None:
        handler, client = engine
        candidate = add(ledger, store, 1, 0)
        publisher = Publisher(ledger, store, engine=client)
        assert publisher.publish(Candidate(1, candidate.folder, kl=float("nan"))) == "rejected"
        assert handler.loaded == []
        assert states(ledger) == {0: "serving", 1: "rejected"}

    def test_an_engine_that_is_down_costs_freshness_alone(
        self, ledger: Ledger, store: PolicyStore, engine: tuple[type[_Engine], SyncEngineClient]
    ) -> None:
        _, client = engine
        with SyncEngineClient("http://127.0.0.1:9", timeout=1) as nobody:
            away = Publisher(ledger, store, engine=nobody, attempts=2, longest_wait_s=0.01)
            assert away.publish(add(ledger, store, 1, 0)) == "candidate"
        assert Publisher(ledger, store, engine=client).publish(add(ledger, store, 2, 1)) == "serving"
        assert states(ledger) == {0: "retired", 1: "rejected", 2: "serving"}

    def test_what_the_engine_refuses_is_rejected(
        self, ledger: Ledger, store: PolicyStore, engine: tuple[type[_Engine], SyncEngineClient]
    ) -> None:
        handler, client = engine
        handler.refuse = 400
        assert Publisher(ledger, store, engine=client).publish(add(ledger, store, 1, 0)) == "rejected"


class TestWholeModels:
    """A vLLM server holds one model; what it can't serve as an adapter becomes one."""

    def test_a_whole_model_is_exchanged(
        self, ledger: Ledger, store: PolicyStore, vllm: tuple[type[_VLLM], SyncEngineClient]
    ) -> None:
        handler, client = vllm
        folder = store.begin(1)
        save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        final = store.finish(1)
        with ledger.transaction() as tx:
            policies.add(tx, Policy(version=1, parent=0, path=str(final), sha256=store.sha256(1), kind="full"))
        state = Publisher(ledger, store, engine=client).publish(Candidate(1, final))
        assert handler.loaded == []
        if handler.in_place is None:
            assert state == "rejected" and handler.exchanged == []
            with ledger.reader() as tx:
                refused = policies.get(tx, 1)
                assert refused is not None and "--worker-extension-cls" in str(refused.reason)
        else:
            assert state == "serving" and handler.exchanged == [("policy-v1", final)]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("lora", "reason"),
        [
            ({"use_dora": True}, "DoRA"),
            ({"bias": "all"}, "biases"),
            ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ],
    )
    def test_what_is_no_plain_adapter_is_merged(
        self,
        tiny: Path,
        tmp_path: Path,
        ledger: Ledger,
        vllm: tuple[type[_VLLM], SyncEngineClient],
        lora: dict[str, Any],
        reason: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        handler, client = vllm
        fill(ledger, make_samples(4))
        if handler.in_place is None:
            with pytest.raises(UserError, match=f"{reason}.*--worker-extension-cls"):
                train(tiny, tmp_path, ledger, client, LoraConfig(target_modules="all-linear", **lora))
            return
        trainer = train(tiny, tmp_path, ledger, client, LoraConfig(r=4, target_modules="all-linear", **lora))
        assert [line for line in caplog.messages if reason in line and "merged" in line]
        folder = tmp_path / "policies" / "policy-v2"
        assert (folder / "adapter_model.safetensors").is_file()
        served = AutoModelForCausalLM.from_pretrained(folder / "merged")
        ids = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            torch.testing.assert_close(served(ids).logits, trainer.model.eval()(ids).logits, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(served(ids).logits, AutoModelForCausalLM.from_pretrained(tiny)(ids).logits)
        with ledger.reader() as tx:
            assert {policy.kind for policy in policies.all(tx)} == {"base", "full"}

    @pytest.mark.slow
    def test_a_plain_adapter_is_served_as_one(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, vllm: tuple[type[_VLLM], SyncEngineClient]
    ) -> None:
        handler, client = vllm
        fill(ledger, make_samples(2))
        train(tiny, tmp_path, ledger, client, LoraConfig(r=4, target_modules="all-linear"))
        assert handler.loaded == ["policy-v1"] and handler.exchanged == []
        assert not (tmp_path / "policies" / "policy-v1" / "merged").exists()

    def test_training_all_weights_needs_an_engine_that_takes_them(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, vllm: tuple[type[_VLLM], SyncEngineClient]
    ) -> None:
        handler, client = vllm
        fill(ledger, make_samples(2))
        if handler.in_place is None:
            with pytest.raises(UserError, match="--worker-extension-cls"):
                train(tiny, tmp_path, ledger, client, None)
            return
        train(tiny, tmp_path, ledger, client, None)
        assert handler.exchanged == [("policy-v1", tmp_path / "policies" / "policy-v1")]

    def test_the_embedded_engine_takes_any_adapter(
        self, ledger: Ledger, store: PolicyStore, engine: tuple[type[_Engine], SyncEngineClient]
    ) -> None:
        handler, client = engine
        handler.do_GET = embedded  # type: ignore[attr-defined]
        dora = {"peft_type": "LORA", "use_dora": True}
        assert Publisher(ledger, store, engine=client).find_merge_reason(dora, []) is None
        assert Publisher(ledger, store).find_merge_reason(dora, []) is None
        with SyncEngineClient("http://127.0.0.1:9", timeout=1) as nobody:
            assert Publisher(ledger, store, engine=nobody).find_merge_reason(dora, []) is not None

    @pytest.mark.parametrize(
        ("config", "modules", "reason"),
        [
            ({}, ["model.layers.0.self_attn.q_proj"], None),
            ({"use_rslora": True, "rank_pattern": {"q_proj": 8}}, [], None),
            ({"peft_type": "IA3"}, [], "IA3"),
            ({"r": 1024}, [], "rank is 1024"),
            ({}, ["base_model.model.lm_head"], "lm_head"),
            ({}, ["model.embed_tokens"], "embed_tokens"),
            ({}, ["model.visual.blocks.0.attn.qkv"], "visual"),
        ],
    )
    def test_what_vllm_serves_as_an_adapter(
        self, config: dict[str, Any], modules: list[str], reason: str | None
    ) -> None:
        obstacle = adapter_obstacle({"peft_type": "LORA", "bias": "none", "r": 8, **config}, modules)
        assert obstacle is None if reason is None else reason in str(obstacle)


def embedded(self: http.server.BaseHTTPRequestHandler) -> None:
    """What the embedded engine says about itself."""
    self.send_response(200 if self.path == "/v1/models" else 404)
    self.end_headers()
    self.wfile.write(json.dumps({"data": [{"id": "base", "owned_by": "clawrl-trl"}]}).encode())


def train(tiny: Path, run: Path, ledger: Ledger, engine: SyncEngineClient, peft_config: LoraConfig | None) -> Any:
    """Train on what is in the ledger, two samples a version, and publish to an engine."""
    source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0)
    source.stop = lambda: not count_untrained(ledger)
    trainer = AsyncGRPOTrainer(
        model=str(tiny),
        args=AsyncGRPOConfig(
            output_dir=str(run),
            per_device_train_batch_size=2,
            use_cpu=True,
            disable_tqdm=True,
            learning_rate=1e-2,
        ),
        source=source,
        publisher=Publisher(ledger, PolicyStore(run / "policies"), engine=engine, gate=FirstGate(max_kl=None)),
        peft_config=peft_config,
    )
    trainer.train()
    return trainer


def count_untrained(ledger: Ledger) -> int:
    with ledger.reader() as tx:
        return tx.query(Sample).where(Sample.state.in_(["ready", "leased"])).count()


class TestRollback:
    def test_to_the_version_before_and_to_a_named_one(self, ledger: Ledger, store: PolicyStore) -> None:
        publisher = Publisher(ledger, store)
        for version in (1, 2, 3):
            publisher.publish(add(ledger, store, version, version - 1))
        add(ledger, store, 4, 3)
        assert rollback(ledger).version == 2
        assert states(ledger) == {0: "retired", 1: "retired", 2: "serving", 3: "retired", 4: "rejected"}
        assert rollback(ledger, to=0).version == 0
        assert rollback(ledger, to=3).version == 3

    def test_mistakes_are_told(self, ledger: Ledger, store: PolicyStore) -> None:
        with pytest.raises(UserError, match="base model"):
            rollback(ledger)
        with pytest.raises(UserError, match="choose one of 0"):
            rollback(ledger, to=7)
