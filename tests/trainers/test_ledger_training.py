"""Training from a ledger: exactly once, resumed as if never stopped, following rollbacks."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import fill, make_samples
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit import LedgerSource, TrainingSample
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, interruptions, policies
from clawrl_trl.ledger.schema import Batch, Event, Sample
from clawrl_trl.policies import Candidate, FirstGate, GateReport, PolicyStore, Publisher, rollback
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, checkpoint


def source(ledger: Ledger, **options: Any) -> LedgerSource:
    """A source that ends when there is nothing left to lease."""
    ledger_source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0, **options)

    def empty() -> bool:
        with ledger.reader() as tx:
            waiting = tx.query(Sample).where(Sample.state.in_(["ready", "leased"])).count()
        return waiting == 0

    ledger_source.stop = empty
    return ledger_source


def build(
    tiny: Path,
    run: Path,
    ledger: Ledger,
    *,
    full: bool = False,
    gate: Any = None,
    trainer_class: type[AsyncGRPOTrainer] = AsyncGRPOTrainer,
    **options: Any,
) -> Any:
    options = {"learning_rate": 1e-2, "max_kl": 100.0, **options}
    args = AsyncGRPOConfig(
        output_dir=str(run), per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True, **options
    )
    publisher = Publisher(ledger, PolicyStore(run / "policies"), gate=gate) if gate else None
    return trainer_class(
        model=str(tiny),
        args=args,
        source=source(ledger),
        publisher=publisher,
        peft_config=None if full else LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1),
    )


def with_rates(rates: list[float]) -> type[AsyncGRPOTrainer]:
    """A trainer with a learning rate for each half of the parameters."""

    class Rated(AsyncGRPOTrainer):
        def create_optimizer(self, model: Any = None) -> Any:
            if self.optimizer is None:
                trained = [p for p in self.model.parameters() if p.requires_grad]
                groups = [{"params": trained[at::2], "lr": rate} for at, rate in enumerate(rates)]
                self.optimizer = torch.optim.AdamW(groups)
            return self.optimizer

    return Rated


def no_space(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def unknown_probability(sample: TrainingSample) -> TrainingSample:
    return TrainingSample(**{**sample.__dict__, "logprobs": np.full(len(sample.completion_ids), -np.inf)})


def states(ledger: Ledger) -> dict[int, str]:
    with ledger.reader() as tx:
        return {policy.version: policy.state for policy in policies.all(tx)}


def weights(run: Path, version: int) -> dict[str, torch.Tensor]:
    return load_file(run / "policies" / f"policy-v{version}" / "adapter_model.safetensors")


class Interrupted(FirstGate):
    """Ends the trainer between commit and gate."""

    def check(self, candidate: Candidate) -> GateReport:
        raise KeyboardInterrupt


class TestVersions:
    def test_each_batch_becomes_a_version(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(5))
        trainer = build(tiny, tmp_path, ledger)
        trainer.train()
        assert states(ledger) == {0: "retired", 1: "retired", 2: "retired", 3: "serving"}
        with ledger.reader() as tx:
            versions = policies.all(tx)
            assert [policy.parent for policy in versions] == [None, 0, 1, 2]
            assert {sample.state for sample in tx.query(Sample)} == {"trained"}
            assert [len(batch.sample_ids) for batch in tx.query(Batch)] == [2, 2, 1]
            store = PolicyStore(tmp_path / "policies")
            assert all(policy.sha256 == store.sha256(policy.version) for policy in versions[1:])
            assert versions[1].metrics["kl_to_base"] >= 0

    def test_a_version_is_a_plain_adapter(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))
        trainer = build(tiny, tmp_path, ledger)
        trainer.train()
        folder = tmp_path / "policies" / "policy-v1"
        served = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), folder)
        ids = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            torch.testing.assert_close(served(ids).logits, trainer.model.eval()(ids).logits)

    @pytest.mark.slow
    def test_full_fine_tuning(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(4))
        trainer = build(tiny, tmp_path, ledger, full=True)
        trainer.train()
        with ledger.reader() as tx:
            assert policies.serving(tx).kind == "full"
        served = AutoModelForCausalLM.from_pretrained(tmp_path / "policies" / "policy-v2")
        ids = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            torch.testing.assert_close(served(ids).logits, trainer.model.eval()(ids).logits)
        assert (tmp_path / "policies" / "policy-v2" / "tokenizer.json").is_file()
        rollback(ledger, to=0)
        fill(ledger, make_samples(2, 5), session="more")
        trainer = build(tiny, tmp_path, ledger, full=True, learning_rate=0.0)
        trainer.train()
        base = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
        assert all(torch.equal(value, base[name]) for name, value in trainer.model.state_dict().items())

    def test_several_steps_per_version(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(8))
        trainer = build(tiny, tmp_path, ledger, publish_steps=2)
        trainer.train()
        assert trainer.state.global_step == 4
        assert max(states(ledger)) == 2

    def test_unused_memory_is_given_back_after_each_version(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        versions: list[int] = []
        fill(ledger, make_samples(4))
        trainer = build(tiny, tmp_path, ledger)
        monkeypatch.setattr(
            "clawrl_trl.trainers.policy_line.clear_device_cache", lambda: versions.append(trainer.policy_version)
        )
        trainer.train()
        assert versions == [1, 2], "an engine that died starts in what the trainer has given back"

    def test_the_log_of_a_version_is_bounded(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoint, "LOGS_KEPT", 2, raising=False)
        fill(ledger, make_samples(8))
        build(tiny, tmp_path, ledger, logging_steps=1).train()
        state = tmp_path / "policies" / "policy-v4" / "training_state" / "trainer_state.json"
        assert [entry["step"] for entry in json.loads(state.read_text())["log_history"]] == [2, 3]

    def test_old_optimizer_states_are_pruned(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(10))
        build(tiny, tmp_path, ledger, keep_training_states=2).train()
        with_state = sorted(path.parent.name for path in (tmp_path / "policies").glob("*/training_state"))
        assert with_state == ["policy-v4", "policy-v5"]
        assert (tmp_path / "policies" / "policy-v1" / "adapter_model.safetensors").is_file()

    def test_stale_samples_are_dropped_with_the_reason(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(6))
        build(tiny, tmp_path, ledger, max_staleness=1).train()
        with ledger.reader() as tx:
            outcomes = [(sample.state, sample.reason) for sample in tx.query(Sample)]
        assert sorted(state for state, _ in outcomes) == ["dropped"] * 2 + ["trained"] * 4
        assert all("stale" in str(reason) for state, reason in outcomes if state == "dropped")

    def test_scores_are_compared_with_those_trained_before(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(6, score=1.0))
        trainer = build(tiny, tmp_path, ledger, baseline_window=4)
        trainer.train()
        logged = [entry["advantage/abs"] for entry in trainer.state.log_history if "advantage/abs" in entry]
        assert logged == pytest.approx([1.0, 0.5, 0.0], abs=1e-5)

    def test_what_trains_nothing_is_dropped(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, [unknown_probability(sample) for sample in make_samples(2)])
        build(tiny, tmp_path, ledger).train()
        assert states(ledger) == {0: "serving"}
        with ledger.reader() as tx:
            assert {sample.state for sample in tx.query(Sample)} == {"dropped"}

    @pytest.mark.slow
    @pytest.mark.parametrize("packing", ["none", "trie"])
    def test_what_trains_nothing_in_a_batch_is_not_called_trained(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, packing: str
    ) -> None:
        first, second, third = make_samples(3)
        useful, useless, last = fill(ledger, [first, unknown_probability(second), third])
        build(tiny, tmp_path, ledger, packing=packing).train()
        with ledger.reader() as tx:
            outcomes = {row.id: (row.state, row.reason) for row in tx.query(Sample)}
            sizes = [policy.metrics["samples"] for policy in policies.all(tx)[1:]]
        assert outcomes[useless] == ("dropped", "nothing to train")
        assert outcomes[useful] == outcomes[last] == ("trained", None)
        assert sizes == [1, 1]


class TestResume:
    @pytest.mark.slow
    def test_equals_uninterrupted_training(self, tiny: Path, tmp_path: Path) -> None:
        """With dropout on: weights, optimizer and random state all have to come back."""
        outcomes = []
        for name, stops in (("whole", [None]), ("parts", [1, 3, None])):
            run = tmp_path / name
            ledger = Ledger.open(run / "ledger.db")
            fill(ledger, make_samples(8))
            for stop in stops:
                options = {} if stop is None else {"max_steps": stop}
                trainer = build(tiny, run, ledger, disable_dropout=False, max_staleness=9, **options)
                trainer.train()
            assert trainer.state.global_step == 4
            assert states(ledger)[4] == "serving"
            outcomes.append(weights(run, 4))
            ledger.close()
        assert outcomes[0].keys() == outcomes[1].keys()
        for key, value in outcomes[0].items():
            assert torch.equal(value, outcomes[1][key]), key

    @pytest.mark.slow
    def test_a_finished_run_takes_no_further_step(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(4))
        build(tiny, tmp_path, ledger, max_steps=1).train()
        again = build(tiny, tmp_path, ledger, max_steps=1)
        again.train()
        assert again.state.global_step == 1
        assert states(ledger) == {0: "retired", 1: "serving"}
        with ledger.reader() as tx:
            assert sorted(sample.state for sample in tx.query(Sample)) == ["ready"] * 2 + ["trained"] * 2

    @pytest.mark.parametrize("stop", [1, 3])
    def test_steps_of_a_batch_that_was_not_finished_are_left_out(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, stop: int
    ) -> None:
        """What is in memory then, and saved, is the version before; the batch comes again, and nobody is to blame."""
        fill(ledger, make_samples(8))
        trainer = build(tiny, tmp_path, ledger, publish_steps=2, max_steps=stop)
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        trainer.save_model(str(tmp_path / "adapter"))
        saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        assert trainer.policy_version == max(states(ledger)) == stop // 2
        if stop == 1:
            assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())
            assert all(not value.any() for name, value in saved.items() if "lora_B" in name)
        else:
            assert all(torch.equal(value, saved[name]) for name, value in weights(tmp_path, 1).items())
        build(tiny, tmp_path, ledger, publish_steps=2).train()
        with ledger.reader() as tx:
            assert [batch.state for batch in tx.query(Batch)] == ["trained", "trained"]
            assert not tx.query(Event).where(Event.kind.in_([interruptions.KIND, interruptions.EXCUSED])).count()

    @pytest.mark.slow
    def test_own_learning_rates_are_kept(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        """On resuming, when a version is rejected, and when they differ from those that were saved."""

        class RefusesTheSecond(FirstGate):
            def check(self, candidate: Candidate) -> GateReport:
                return GateReport(candidate.version != 2, "no")

        for seed, rates in enumerate([[0.001, 0.002], [0.001, 0.002], [0.003, 0.001]]):
            fill(ledger, make_samples(4, seed), session=str(seed))
            trainer = build(
                *(tiny, tmp_path, ledger),
                gate=RefusesTheSecond(),
                trainer_class=with_rates(rates),
                lr_scheduler_type="constant_with_warmup",
            )
            trainer.train()
            assert [group["lr"] for group in trainer.optimizer.param_groups] == rates
            assert trainer.lr_scheduler.base_lrs == rates

    @pytest.mark.slow
    def test_an_update_that_was_not_written_is_not_applied_twice(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same trainer trains again; it has only the base model to go back to."""
        outcomes = []
        for name, full_disk in (("whole", False), ("again", True)):
            ledger = Ledger.open(tmp_path / name / "ledger.db")
            fill(ledger, make_samples(2))
            trainer = build(tiny, tmp_path / name, ledger)
            if full_disk:
                with monkeypatch.context() as patch:
                    patch.setattr(checkpoint, "_write_weights", no_space)
                    with pytest.raises(UserError, match="free some space"):
                        trainer.train()
            trainer.train()
            assert states(ledger) == {0: "retired", 1: "serving"}
            outcomes.append((weights(tmp_path / name, 1), trainer.optimizer.state_dict()["state"]))
            ledger.close()
        torch.testing.assert_close(*outcomes, rtol=0, atol=0)

    @pytest.mark.slow
    def test_leftovers_of_a_crash_are_removed(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))
        build(tiny, tmp_path, ledger).train()
        store = PolicyStore(tmp_path / "policies")
        store.begin(2)
        store.finish(2)
        store.begin(3)
        fill(ledger, make_samples(2, 5), session="more")
        build(tiny, tmp_path, ledger).train()
        assert states(ledger)[2] == "serving"
        assert (tmp_path / "policies" / "policy-v2" / "adapter_model.safetensors").is_file()
        assert not list((tmp_path / "policies").glob(".tmp-*"))

    def test_a_new_ledger_costs_no_weights(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))
        build(tiny, tmp_path, ledger).train()
        fresh = Ledger.open(tmp_path / "fresh.db")
        fill(fresh, make_samples(2))
        with pytest.raises(UserError, match="does not know policy-v1"):
            build(tiny, tmp_path, fresh).train()
        assert weights(tmp_path, 1)
        fresh.close()

    @pytest.mark.slow
    def test_a_candidate_that_was_committed_is_published(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))

        with pytest.raises(KeyboardInterrupt):
            build(tiny, tmp_path, ledger, gate=Interrupted()).train()
        assert states(ledger) == {0: "serving", 1: "candidate"}
        trainer = build(tiny, tmp_path, ledger)
        trainer.train()
        assert states(ledger) == {0: "retired", 1: "serving"}
        assert trainer.policy_version == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("kl", [9.0, float("nan"), float("inf")])
    def test_a_ruined_candidate_is_rejected_after_a_restart(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, kl: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the gate was to hear of it is in the ledger since the commit."""
        fill(ledger, make_samples(2))
        monkeypatch.setattr(async_grpo_trainer, "compute_kl_to_base", lambda *arguments: kl)
        with pytest.raises(KeyboardInterrupt):
            build(tiny, tmp_path, ledger, gate=Interrupted()).train()
        trainer = build(tiny, tmp_path, ledger, max_kl=1.0)
        trainer.train()
        assert states(ledger) == {0: "serving", 1: "rejected"}
        assert trainer.policy_version == 0


def test_a_whole_model_saved_into_the_run_folder_leaves_the_settings(
    tiny: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Both are JSON in one folder: the model's is `config.json`, as transformers calls it."""
    fill(ledger, make_samples(2))
    settings = ServeSettings(run=str(tmp_path), port=1234, model_name_or_path=str(tiny))
    settings.save()
    trainer = build(tiny, tmp_path, ledger, full=True)
    trainer.train()
    trainer.save_model(str(tmp_path))
    assert ServeSettings.load(tmp_path) == settings
    settings.save()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() > 0


def zero_half(path: Path) -> None:
    """What a failing disk or a torn copy leaves of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


class TestDamage:
    @pytest.mark.slow
    @pytest.mark.parametrize("pruned", [False, True])
    def test_a_damaged_version_is_not_trained_on(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture, pruned: bool
    ) -> None:
        fill(ledger, make_samples(4))
        build(tiny, tmp_path, ledger).train()
        zero_half(tmp_path / "policies" / "policy-v2" / "adapter_model.safetensors")
        if pruned:
            shutil.rmtree(tmp_path / "policies" / "policy-v2" / "training_state")
        fill(ledger, make_samples(2, 5), session="more")
        build(tiny, tmp_path, ledger, learning_rate=1e-12).train()
        assert states(ledger) == {0: "retired", 1: "retired", 2: "rejected", 3: "serving"}
        with ledger.reader() as tx:
            newest, damaged = policies.serving(tx), policies.get(tx, 2)
        assert newest.parent == 1 and damaged is not None and "damaged" in str(damaged.reason)
        for key, value in weights(tmp_path, 3).items():
            torch.testing.assert_close(value, weights(tmp_path, 1)[key])
        assert [line for line in caplog.messages if "damaged" in line] == [
            "policy version 2 is damaged (its weights are not those that were trained): version 1 serves again"
        ]

    @pytest.mark.slow
    def test_a_damaged_candidate_is_not_published(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))
        with pytest.raises(KeyboardInterrupt):
            build(tiny, tmp_path, ledger, gate=Interrupted()).train()
        zero_half(tmp_path / "policies" / "policy-v1" / "adapter_model.safetensors")
        build(tiny, tmp_path, ledger).train()
        assert states(ledger) == {0: "serving", 1: "rejected"}

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json", "rng_state.pth"])
    def test_a_damaged_training_state_costs_the_optimizer_alone(
        self, tiny: Path, tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        fill(ledger, make_samples(4))
        build(tiny, tmp_path, ledger).train()
        zero_half(tmp_path / "policies" / "policy-v2" / "training_state" / name)
        fill(ledger, make_samples(2, 5), session="more")
        trainer = build(tiny, tmp_path, ledger)
        trainer.train()
        assert states(ledger) == {0: "retired", 1: "retired", 2: "retired", 3: "serving"}
        assert trainer.policy_version == 3
        (line,) = [line for line in caplog.messages if "the optimizer starts anew" in line]
        assert f"training_state/{name} has changed" in line

    def test_a_damaged_version_is_no_place_to_go_back_to(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(6))
        build(tiny, tmp_path, ledger).train()
        zero_half(tmp_path / "policies" / "policy-v2" / "adapter_model.safetensors")
        store = PolicyStore(tmp_path / "policies")
        with pytest.raises(UserError, match="Version 2 can't serve, its weights are not those that were trained"):
            rollback(ledger, to=2, store=store)
        assert rollback(ledger, store=store).version == 1

    @pytest.mark.slow
    def test_a_run_that_was_moved_is_trained_on(self, tiny: Path, tmp_path: Path) -> None:
        """Paths in the ledger are relative to the run folder; those of older runs are absolute."""
        first = tmp_path / "first"
        ledger = Ledger.open(first / "ledger.db")
        fill(ledger, make_samples(4))
        build(tiny, first, ledger).train()
        with ledger.transaction() as tx:
            assert [policy.path for policy in policies.all(tx)][1:] == ["policies/policy-v1", "policies/policy-v2"]
            policies.serving(tx).path = str(first / "policies" / "policy-v2")
        ledger.close()
        moved = first.rename(tmp_path / "moved")
        ledger = Ledger.open(moved / "ledger.db")
        assert rollback(ledger, to=1, store=PolicyStore(moved / "policies")).version == 1
        assert rollback(ledger, to=2, store=PolicyStore(moved / "policies")).version == 2
        fill(ledger, make_samples(2, 5), session="more")
        build(tiny, moved, ledger).train()
        with ledger.reader() as tx:
            assert (policies.serving(tx).version, policies.serving(tx).parent) == (3, 2)
        ledger.close()


class TestGoingBack:
    @pytest.mark.slow
    def test_training_follows_a_rollback(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(4))
        build(tiny, tmp_path, ledger).train()
        rollback(ledger)
        fill(ledger, make_samples(2, 5), session="more")
        build(tiny, tmp_path, ledger, learning_rate=0.0).train()
        with ledger.reader() as tx:
            newest = policies.serving(tx)
        assert (newest.version, newest.parent) == (3, 1)
        assert all(torch.equal(value, weights(tmp_path, 1)[key]) for key, value in weights(tmp_path, 3).items())

    @pytest.mark.slow
    def test_resuming_from_an_earlier_version(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(4))
        build(tiny, tmp_path, ledger).train()
        trainer = build(tiny, tmp_path, ledger)
        with pytest.raises(UserError, match="no policy version of this run"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "elsewhere"))
        trainer.train(resume_from_checkpoint=str(tmp_path / "policies" / "policy-v1"))
        assert trainer.policy_version == 1
        assert states(ledger) == {0: "retired", 1: "serving", 2: "retired"}

    @pytest.mark.slow
    def test_a_rollback_while_training(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(6))

        class RollsBack(FirstGate):
            def check(self, candidate: Candidate) -> GateReport:
                if candidate.version == 3:
                    rollback(ledger, to=1)
                return super().check(candidate)

        build(tiny, tmp_path, ledger, gate=RollsBack(max_kl=None)).train()
        assert states(ledger) == {0: "retired", 1: "serving", 2: "retired", 3: "rejected"}
        fill(ledger, make_samples(2, 5), session="more")
        trainer = build(tiny, tmp_path, ledger)
        trainer.train()
        with ledger.reader() as tx:
            assert policies.serving(tx).parent == 1

    def test_a_rollback_during_a_step_is_not_undone(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        """What was trained on the version that was left is thrown away; its samples train the one that serves."""
        fill(ledger, make_samples(6))

        class RolledBack(AsyncGRPOTrainer):
            rolled = False

            def _end_step(self) -> None:
                if self.policy_version == 2 and not self.rolled:
                    self.rolled = True
                    rollback(ledger, to=1)
                super()._end_step()

        trainer = build(tiny, tmp_path, ledger, trainer_class=RolledBack)
        trainer.train()
        assert states(ledger) == {0: "retired", 1: "retired", 2: "retired", 3: "serving"}
        with ledger.reader() as tx:
            newest = policies.serving(tx)
            batches = [(batch.state, batch.trained_into) for batch in tx.query(Batch).order_by(Batch.created_at)]
            assert not tx.query(Event).where(Event.kind == interruptions.EXCUSED).count()
        assert (trainer.policy_version, newest.parent) == (3, 1)
        assert batches == [("trained", 1), ("trained", 2), ("released", None), ("trained", 3)]

    def test_a_rejected_version_is_left_behind(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(6))

        class RefusesTheSecond(FirstGate):
            def check(self, candidate: Candidate) -> GateReport:
                return GateReport(False, "no") if candidate.version == 2 else super().check(candidate)

        build(tiny, tmp_path, ledger, gate=RefusesTheSecond(max_kl=None)).train()
        assert states(ledger) == {0: "retired", 1: "retired", 2: "rejected", 3: "serving"}
        with ledger.reader() as tx:
            assert policies.serving(tx).parent == 1

    def test_the_first_gate_stops_a_ruined_model(self, tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
        fill(ledger, make_samples(2))
        trainer = build(tiny, tmp_path, ledger, learning_rate=1e6, max_grad_norm=0.0, max_kl=0.5)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        assert states(ledger) == {0: "serving", 1: "rejected"}
        assert trainer.policy_version == 0
        assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())

    def test_the_first_gate_looks_at_replies_when_the_batch_is_short(
        self, tiny: Path, tmp_path: Path, ledger: Ledger
    ) -> None:
        """One sample for two accumulation steps: the last micro-batch is empty."""
        fill(ledger, make_samples(1))
        ruin = {"learning_rate": 1e6, "max_grad_norm": 0.0, "max_kl": 0.5}
        build(tiny, tmp_path, ledger, gradient_accumulation_steps=2, **ruin).train()
        assert states(ledger) == {0: "serving", 1: "rejected"}


def test_version_0_and_merged_models_are_of_the_revision_that_is_trained(
    tiny: Path, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    read = Qwen3ForCausalLM.from_pretrained

    def spy(source: Any, revision: str | None = None, **options: Any) -> Any:
        asked.append(revision)
        return read(source, **options)

    whole = build(tiny, tmp_path, ledger, full=True, model_init_kwargs={"revision": "v2"})
    adapter = build(tiny, tmp_path, ledger, model_init_kwargs={"revision": "v2"})
    monkeypatch.setattr(Qwen3ForCausalLM, "from_pretrained", spy)
    checkpoint.InitialWeights(whole).restore()
    checkpoint._write_weights(adapter, tmp_path)
    checkpoint._merge(adapter, tmp_path)
    assert asked == ["v2", "v2"]


def test_facts_of_a_version(tiny: Path, tmp_path: Path, ledger: Ledger) -> None:
    fill(ledger, make_samples(2))
    build(tiny, tmp_path, ledger).train()
    state = tmp_path / "policies" / "policy-v1" / "training_state"
    facts = json.loads((state / "policy.json").read_text())
    with ledger.reader() as tx:
        assert facts == {"version": 1, "parent": 0, "batches": [tx.query(Batch).one().id], "step": 1, "backend": "ddp"}
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= {p.name for p in state.iterdir()}
