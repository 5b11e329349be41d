"""The three trainers on samples that exist already: no ledger, no engine."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import make_samples
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

from clawrl_trl.credit import SampleBatch, TrainingSample
from clawrl_trl.custom import load_callable
from clawrl_trl.trainers import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    CombineConfig,
    CombineTrainer,
    OPDConfig,
    OPDTrainer,
)
from clawrl_trl.trainers.micro_batch import CreditedBatch, MicroBatch
from clawrl_trl.trainers.terms.divergence import compute_kl_to_base
from clawrl_trl.trainers.terms.logprobs import compute_logps


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")


class Common:
    trainer_class: type[AsyncGRPOTrainer]
    config_class: type[AsyncGRPOConfig]

    def build(
        self, tiny: Path, tmp_path: Path, source: Any, *, full: bool = False, loss: Any = None, **options: Any
    ) -> AsyncGRPOTrainer:
        args = self.config_class(
            **{
                "output_dir": str(tmp_path / "run"),
                "learning_rate": 1e-2,
                "use_cpu": True,
                "disable_tqdm": True,
                **options,
            }
        )
        peft = None if full else lora()
        return self.trainer_class(
            model=str(tiny), args=args, source=source, peft_config=peft, custom_loss_function=loss
        )

    @pytest.mark.parametrize("full", [False, True])
    def test_every_trainable_parameter_changes(self, tiny: Path, tmp_path: Path, full: bool) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(12, temperatures=(1.0, 0.7)), full=full)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        trainer.train()
        assert trainer.state.global_step == 3
        assert before
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                assert not torch.equal(parameter, before[name]), name

    def test_saved_adapter_and_card(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(4))
        trainer.train()
        trainer.save_model()
        run = tmp_path / "run"
        card = (run / "README.md").read_text()
        assert "2603.10165" in card and "clawrl-trl" in card and self.trainer_class._name in card
        assert (run / "tokenizer.json").is_file()
        again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), run)
        ids = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            torch.testing.assert_close(again(ids).logits, trainer.model.eval()(ids).logits)

    def test_defaults_need_no_thought(self, tmp_path: Path) -> None:
        for batch_size in (1, 3, 4):
            args = self.config_class(output_dir=str(tmp_path), per_device_train_batch_size=batch_size)
            assert args.step_batch_size == batch_size
        assert not args.gradient_checkpointing
        assert args.report_to == []
        assert args.bf16 == torch.cuda.is_available()
        assert args.eval_strategy == "no"


class TestAsyncGRPOTrainer(Common):
    trainer_class, config_class = AsyncGRPOTrainer, AsyncGRPOConfig

    def test_a_group_of_one_is_not_advantage_zero(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(1, score=-1.0, group="task"), importance_sampling="none")
        (micro,) = trainer.get_train_dataloader()
        inputs = trainer._prepare_inputs(micro)
        assert (inputs["advantages"] == -1.0).all()

    @pytest.mark.slow
    def test_rows_and_files_are_sources(self, tiny: Path, tmp_path: Path) -> None:
        rows = [
            {"prompt_ids": [2, 3], "completion_ids": [4, 5], "logprobs": [-0.7, -0.1], "score": 1.0},
            {"prompt_ids": [2], "completion_ids": [6], "logprobs": [-1.2], "score": -1.0, "note": "ignored"},
        ]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        for source in (rows, path, iter(rows)):
            trainer = self.build(tiny, tmp_path, source)
            trainer.train()
            assert trainer.state.global_step == 1

    def test_epochs(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(6), num_train_epochs=3)
        trainer.train()
        assert trainer.state.global_step == 6

    @pytest.mark.slow
    def test_checkpoints_of_a_list_resume_exactly(self, tiny: Path, tmp_path: Path) -> None:
        weights = []
        for name, stop in (("whole", None), ("parts", 2)):
            options: dict[str, Any] = {"per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2}
            options |= {"output_dir": str(tmp_path / name), "disable_dropout": False}
            if stop is not None:
                self.build(tiny, tmp_path, make_samples(8), max_steps=stop, **options).train()
            trainer = self.build(tiny, tmp_path, make_samples(8), **options)
            trainer.train(resume_from_checkpoint=stop is not None)
            assert trainer.state.global_step == 4
            weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())

    @pytest.mark.slow
    def test_a_finished_list_takes_no_further_step(self, tiny: Path, tmp_path: Path) -> None:
        options: dict[str, Any] = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
        self.build(tiny, tmp_path, make_samples(8), **options).train()
        trainer = self.build(tiny, tmp_path, make_samples(8), **options)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 1

    def test_iterations_reuse_a_batch(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(8), num_iterations=3, learning_rate=0.3)
        trainer.train()
        assert trainer.state.global_step == 6
        ratios = [
            row["clip_ratio/region_mean"] for row in trainer.state.log_history if "clip_ratio/region_mean" in row
        ]
        assert ratios[0] == 0.0 and max(ratios) > 0.0

    def test_samples_without_a_score_train_nothing(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, [*make_samples(3), *make_samples(1, 9, score=None)])
        (micro,) = trainer.get_train_dataloader()
        assert len(micro.rows) == 3
        trainer = self.build(tiny, tmp_path, make_samples(4, score=None))
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())

    def check_cuts(self, tiny: Path, tmp_path: Path, cuts: Sequence[tuple[int, int]], **settings: Any) -> None:
        """Five rows in so many micro-batches (size, number) make the same step."""
        weights = []
        for size, steps in cuts:
            trainer = self.build(
                tiny,
                tmp_path,
                make_samples(5),
                per_device_train_batch_size=size,
                gradient_accumulation_steps=steps,
                optim="sgd",
                max_grad_norm=0.0,
                **settings,
            )
            trainer.train()
            assert trainer.state.global_step == 1
            weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
        for name, value in weights[0].items():
            for other in weights[1:]:
                torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
    def test_accumulating_a_ragged_batch_changes_nothing(self, tiny: Path, tmp_path: Path, loss_type: str) -> None:
        self.check_cuts(tiny, tmp_path, ((8, 1), (2, 4)), loss_type=loss_type)

    def test_each_sample_is_scored_at_its_own_temperature(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(4, temperatures=(1.0, 0.5, 2.0)))
        (micro,) = trainer.get_train_dataloader()
        inputs = trainer._prepare_inputs(micro)
        with torch.no_grad():
            fused = trainer.logps(trainer.model, inputs)
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            plain, _, _ = compute_logps(trainer.model, ids, mask, fused.size(1), inputs["temperature"])
        assert set(inputs["temperature"].tolist()) == {1.0, 0.5, 2.0}
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)

    @pytest.mark.slow
    def test_custom_loss(self, tiny: Path, tmp_path: Path) -> None:
        shapes = []

        def half(trainer: Any, model: Any, inputs: dict[str, Any], default_loss: Any) -> torch.Tensor:
            shapes.append(inputs["advantages"].shape)
            return default_loss(model, inputs) / 2

        losses = []
        for loss in (None, half):
            trainer = self.build(tiny, tmp_path, make_samples(4), loss=loss)
            trainer.train()
            losses.append(trainer.state.log_history[0]["loss"])
        assert len(shapes) == 1
        assert losses[1] == pytest.approx(losses[0] / 2)

    @pytest.mark.slow
    @pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
    def test_a_custom_term_counts_alike_however_a_batch_is_cut(
        self, tiny: Path, tmp_path: Path, loss_type: str
    ) -> None:
        """Five rows in one micro-batch, in four unequal ones, and in eight of which three are empty."""

        def with_likelihood(trainer: Any, model: Any, inputs: dict[str, Any], default_loss: Any) -> torch.Tensor:
            likelihood = (trainer.logps(model, inputs) * inputs["tool_mask"]).sum(-1).mean()
            return default_loss(model, inputs) - likelihood

        cuts = ((8, 1), (2, 4), (1, 8))
        self.check_cuts(tiny, tmp_path, cuts, loss=with_likelihood, loss_type=loss_type)

    @pytest.mark.slow
    @pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
    def test_a_custom_loss_that_is_the_default_changes_nothing(
        self, tiny: Path, tmp_path: Path, loss_type: str
    ) -> None:
        """Not even if it looks at the log-probabilities first; it is not asked about the empty micro-batch."""

        def same(trainer: Any, model: Any, inputs: dict[str, Any], default_loss: Any) -> torch.Tensor:
            assert inputs["tool_mask"].any()
            trainer.logps(model, inputs)
            return default_loss(model, inputs)

        losses = []
        for loss in (None, same):
            trainer = self.build(
                tiny,
                tmp_path,
                make_samples(3, temperatures=(0.5, 2.0)),
                loss=loss,
                loss_type=loss_type,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=4,
            )
            trainer.train()
            losses.append(trainer.state.log_history[0])
        for name in ("loss", "grad_norm", "kl", "entropy"):
            assert losses[1][name] == pytest.approx(losses[0][name], rel=1e-5), name

    def test_the_example_of_a_custom_loss_trains_no_padding(self, tiny: Path, tmp_path: Path) -> None:
        brevity = load_callable(
            str(Path(__file__).parents[2] / "examples/custom/loss.py:brevity"),
            parameters=["trainer", "model", "inputs", "default_loss"],
        )
        trainer = self.build(tiny, tmp_path, make_samples(1), loss=brevity)
        inputs = trainer.input_builder.build(
            MicroBatch(CreditedBatch(SampleBatch([]), [], {}), [], num_items=0.0, row_share=0.0)
        )
        loss = brevity(trainer, trainer.model, inputs, lambda model, inputs: torch.zeros(()))
        assert loss == 0.0

    @pytest.mark.slow
    def test_turns_that_share_tokens_give_the_same_gradient_per_token(self, tiny: Path, tmp_path: Path) -> None:
        first = make_samples(1, 1, score=1.0)[0]
        follow = make_samples(1, 2, score=-1.0, prompt_ids=[*first.prompt_ids, *first.completion_ids, 9, 8])[0]
        weights = []
        for packing in ("none", "trie"):
            trainer = self.build(
                tiny,
                tmp_path,
                [first, follow],
                packing=packing,
                loss_type="dapo",
                optim="sgd",
                max_grad_norm=0.0,
            )
            (micro,) = trainer.get_train_dataloader()
            assert len(micro.rows) == 2
            trainer.train()
            weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
        for name, value in weights[0].items():
            torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-6)

    def test_kl_to_the_base(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, make_samples(4))
        (micro,) = trainer.get_train_dataloader()
        inputs = trainer._prepare_inputs(micro)
        assert compute_kl_to_base(trainer, inputs) == pytest.approx(0.0, abs=1e-6)
        torch.nn.init.normal_(next(p for n, p in trainer.model.named_parameters() if "lora_B" in n), std=1.0)
        assert compute_kl_to_base(trainer, inputs) > 0.01
        assert compute_kl_to_base(trainer, trainer.input_builder.build(replace(micro, rows=[], inputs=None))) is None

    def test_a_sample_of_unknown_probability_is_left_out(self, tiny: Path, tmp_path: Path) -> None:
        (sample,) = make_samples(1)
        logprobs = sample.logprobs.copy()
        logprobs[0] = -np.inf
        broken = TrainingSample(**{**sample.__dict__, "logprobs": logprobs})
        trainer = self.build(tiny, tmp_path, [broken])
        (micro,) = trainer.get_train_dataloader()
        inputs = trainer._prepare_inputs(micro)
        assert inputs["tool_mask"][0].tolist() == [0] + [1] * (len(sample.completion_ids) - 1)
        assert all(value.isfinite().all() for value in inputs.values() if torch.is_tensor(value))

    @pytest.mark.parametrize(
        "options", [{"importance_sampling": "vllm"}, {"importance_sampling_cap": 1.0}, {"publish_steps": 0}]
    )
    def test_bad_options_are_refused(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            AsyncGRPOConfig(output_dir=str(tmp_path), **options)


class TestOPDTrainer(Common):
    trainer_class, config_class = OPDTrainer, OPDConfig

    def test_samples_without_a_teacher_train_nothing(self, tiny: Path, tmp_path: Path) -> None:
        trainer = self.build(tiny, tmp_path, [*make_samples(3), *make_samples(1, 9, teacher_logprobs=None)])
        (micro,) = trainer.get_train_dataloader()
        assert len(micro.rows) == 3

    def test_an_unknown_gap_is_masked_not_zero(self, tiny: Path, tmp_path: Path) -> None:
        (sample,) = make_samples(1)
        teacher = sample.teacher_logprobs.copy()
        teacher[1] = np.nan
        trainer = self.build(tiny, tmp_path, [TrainingSample(**{**sample.__dict__, "teacher_logprobs": teacher})])
        (micro,) = trainer.get_train_dataloader()
        mask = trainer._prepare_inputs(micro)["tool_mask"][0]
        assert mask.tolist() == [index != 1 for index in range(len(teacher))]


class TestCombineTrainer(Common):
    trainer_class, config_class = CombineTrainer, CombineConfig

    def test_either_ingredient_is_enough(self, tiny: Path, tmp_path: Path) -> None:
        samples = [
            *make_samples(1, 1, teacher_logprobs=None),
            *make_samples(1, 2, score=None),
            *make_samples(1, 3, score=None, teacher_logprobs=None),
        ]
        trainer = self.build(tiny, tmp_path, samples)
        (micro,) = trainer.get_train_dataloader()
        assert [row.sample.sample_id for row in micro.rows] == ["s1-0", "s2-0"]

    @pytest.mark.parametrize("top_k", [0, 2])
    def test_a_score_without_a_teacher_has_a_weight_of_its_own(self, tiny: Path, tmp_path: Path, top_k: int) -> None:
        samples = [*make_samples(1, 1, score=-1.0, teacher_logprobs=None), *make_samples(1, 2, score=-1.0)]
        if top_k:
            length = len(samples[1].completion_ids)
            ids, logps = np.full((length, 1), 3), np.full((length, 1), -1.0)
            samples[1] = replace(samples[1], topk_ids=ids, topk_logprobs=logps)
        weights = {"w_rl": 0.25, "w_rl_alone": 2.0, "w_opd": 0.0, "opd_top_k": top_k}
        alone, taught = self.build(tiny, tmp_path, samples, **weights).advantages(samples)
        assert set(alone) == {-2.0} and set(taught) == {-0.25}
