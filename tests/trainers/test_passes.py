"""A step in several passes equals the step in one, and a lack of memory costs a sample and not the run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import fill, make_samples
from peft import LoraConfig

from clawrl_trl.credit import CreditedSample, LedgerSource, SampleBatch, TrainingSample
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Sample
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.micro_batch import CreditedBatch, Division
from clawrl_trl.trainers.passes.grouping import (
    ALIKE,
    LARGEST_PADDING,
    PADDED,
    SHARED,
    Layout,
    count_padded,
    group_rows,
)
from clawrl_trl.trainers.passes.memory import is_out_of_memory
from clawrl_trl.trainers.passes.runner import PassRunner

LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")


def build(tiny: Path, folder: Path, source: Any, loss: Any = None, **options: Any) -> AsyncGRPOTrainer:
    defaults = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.05, "per_device_train_batch_size": 6}
    args = AsyncGRPOConfig(
        **{"output_dir": str(folder), "use_cpu": True, "disable_tqdm": True, "max_kl": 100.0} | defaults | options
    )
    peft = LoraConfig(r=4, target_modules="all-linear")
    return AsyncGRPOTrainer(model=str(tiny), args=args, source=source, peft_config=peft, custom_loss_function=loss)


def train(trainer: AsyncGRPOTrainer) -> torch.Tensor:
    """What training changed, as one vector."""
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    trainer.train()
    return torch.cat([(new.detach() - old).flatten() for new, old in zip(parameters, before, strict=True)])


def credited(lengths: Sequence[tuple[int, int]]) -> list[CreditedSample]:
    return [
        CreditedSample(
            TrainingSample(prompt_ids=[2] * prompt, completion_ids=[3] * reply, logprobs=[-1.0] * reply),
            torch.ones(reply, dtype=torch.float64).numpy(),
        )
        for prompt, reply in lengths
    ]


@pytest.mark.parametrize("layout", [PADDED, SHARED], ids=["padded", "shared"])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12),
    budget=st.integers(1, 400),
)
def test_groups_hold_each_row_once_within_the_budget(
    layout: Layout, lengths: list[tuple[int, int]], budget: int
) -> None:
    rows = credited(lengths)
    groups = group_rows(rows, budget, layout)
    assert sorted(id(row) for group in groups for row in group) == sorted(map(id, rows))
    assert all(len(group) == 1 or layout.cost(group) <= budget for group in groups)
    assert [[id(row) for row in group] for group in groups] == [
        [id(row) for row in group] for group in group_rows(rows, budget, layout)
    ]
    assert group_rows(rows, 0, layout) == [rows]


def test_turns_of_a_session_lie_in_one_pass() -> None:
    """Whose tokens are those of the last turn; padded, four of them would be four passes."""
    rows = [
        CreditedSample(
            TrainingSample(
                prompt_ids=[first, *range(10, 10 + 20 * turn)],
                completion_ids=[5],
                logprobs=[-1.0],
                sample_id=f"{first}",
            ),
            torch.ones(1, dtype=torch.float64).numpy(),
        )
        for turn in range(1, 5)
        for first in (1, 2)
    ]
    groups = group_rows(rows, 90, SHARED)
    assert [{row.sample.sample_id for row in group} for group in groups] == [{"1"}, {"2"}]
    assert SHARED.cost(groups[0]) == 1 + 80 + 4
    assert len(group_rows(rows, 90)) > 4


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12))
def test_rows_that_differ_in_length_are_apart(lengths: list[tuple[int, int]]) -> None:
    rows = credited(lengths)
    groups = group_rows(rows, 200, ALIKE)
    assert sorted(id(row) for group in groups for row in group) == sorted(map(id, rows))
    for group in groups:
        padding = count_padded(group) - sum(row.tokens for row in group)
        assert len(group) == 1 or (count_padded(group) <= 200 and padding <= LARGEST_PADDING * count_padded(group))


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
def test_passes_make_the_step_of_one(tiny: Path, tmp_path: Path, loss_type: str) -> None:
    updates, logs = [], []
    for budget in (0, 12):
        options: dict[str, Any] = {"loss_type": loss_type, "max_pass_tokens": budget, "beta": 0.1}
        trainer = build(tiny, tmp_path, make_samples(6), entropy_coef=0.3, **options)
        updates.append(train(trainer))
        logs.append(trainer.state.log_history[0])
    assert logs[0]["passes"] == 1 and logs[1]["passes"] > 2
    assert (updates[0] - updates[1]).norm() <= 5e-5 * updates[0].norm()
    without = train(build(tiny, tmp_path / "plain", make_samples(6), **options))
    assert (updates[1] - without).norm() > 1e-2 * without.norm(), "the entropy bonus counts"
    assert [log["entropy_coef"] for log in logs] == pytest.approx([0.3, 0.3])
    for name in ("kl", "entropy", "loss", "policy_loss"):
        assert logs[1][name] == pytest.approx(logs[0][name], rel=1e-4, abs=1e-7), name


@pytest.mark.slow
@pytest.mark.parametrize("message", ["CUDA out of memory.", "DefaultCPUAllocator: can't allocate memory"])
def test_a_sample_that_does_not_fit_is_dropped_and_the_rest_is_trained(
    tiny: Path, ledger: Ledger, tmp_path: Path, message: str
) -> None:
    rows = [*make_samples(3), *make_samples(1, 9, prompt_ids=list(range(2, 42)))]
    ids = fill(ledger, rows)

    def poison(trainer: Any, model: Any, inputs: Any, default: Any) -> torch.Tensor:
        loss = default(model, inputs)
        if inputs["prompt_ids"].size(1) > 30:
            loss.backward()  # what a failed backward leaves must not be trained
            raise torch.OutOfMemoryError(message) if message.startswith("CUDA") else RuntimeError(message)
        return loss

    source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0)
    trainer = build(tiny, tmp_path, source, poison, max_steps=1, per_device_train_batch_size=4)
    update = train(trainer)
    with ledger.reader() as tx:
        states = [(row.state, row.reason) for row in (tx.get(Sample, i) for i in ids) if row is not None]
    assert states == [("trained", None)] * 3 + [("dropped", "out of memory")]
    whole = train(build(tiny, tmp_path / "rest", make_samples(3), per_device_train_batch_size=3, max_steps=1))
    # Weights as they were: each of the rest counts a quarter, not a third.
    assert (update - whole * 0.75).norm() <= 5e-5 * whole.norm()


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call.",
    ],
)
def test_a_lack_of_memory_outside_of_the_allocator_is_recognised(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_another_error_is_raised(tiny: Path, tmp_path: Path) -> None:
    def fail(*args: Any) -> torch.Tensor:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        build(tiny, tmp_path, make_samples(2), fail).train()


@pytest.mark.slow
@pytest.mark.parametrize(("scales", "factor"), [(True, 0.5), (False, 1.0)])
def test_part_of_a_batch_has_its_part_of_the_rate(tiny: Path, tmp_path: Path, scales: bool, factor: float) -> None:
    full = train(build(tiny, tmp_path, make_samples(3), per_device_train_batch_size=3, optim="adamw_torch"))
    trainer = build(tiny, tmp_path, make_samples(3), optim="adamw_torch", scale_partial_batches=scales)
    assert (train(trainer) - full * factor).norm() <= 1e-4 * full.norm()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.05}


def test_a_long_sample_of_a_list_is_left_out(tiny: Path, tmp_path: Path) -> None:
    rows = [*make_samples(2), *make_samples(1, 9, prompt_ids=list(range(2, 42)))]
    trainer = build(tiny, tmp_path, rows, max_sample_tokens=30)
    trainer.train()
    assert trainer.state.log_history[0]["dropped/too_long"] == 1


def test_a_long_sample_takes_no_other_without_an_id_along(tiny: Path, tmp_path: Path) -> None:
    rows = [*make_samples(2), *make_samples(1, 9, prompt_ids=list(range(2, 42)))]
    rows = [replace(row, sample_id="") for row in rows]
    trainer = build(tiny, tmp_path, rows, max_sample_tokens=30)
    assert train(trainer).norm() > 0
    log = trainer.state.log_history[0]
    assert log["dropped/too_long"] == 1 and log["samples"] == 2


@pytest.mark.slow
def test_what_is_given_up_is_not_trained_in_a_further_iteration(tiny: Path, ledger: Ledger, tmp_path: Path) -> None:
    (sample_id,) = fill(ledger, make_samples(1))
    calls: list[int] = []

    def fail_once(trainer: Any, model: Any, inputs: Any, default: Any) -> torch.Tensor:
        calls.append(len(inputs["prompt_ids"]))
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return default(model, inputs)

    source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0)
    trainer = build(tiny, tmp_path, source, fail_once, max_steps=2, num_iterations=2, per_device_train_batch_size=1)
    assert train(trainer).norm() == 0 and calls
    with ledger.reader() as tx:
        row = tx.get(Sample, sample_id)
        assert row is not None and (row.state, row.reason) == ("dropped", "out of memory")


def test_the_gate_looks_at_the_pass_that_trains_most_and_at_nothing_that_was_given_up(
    tiny: Path, tmp_path: Path
) -> None:
    lengths = [(20, 40), (20, 38), (20, 30), (20, 1)]
    rows = [
        replace(row, sample=replace(row.sample, sample_id=str(number))) for number, row in enumerate(credited(lengths))
    ]
    runner = PassRunner(build(tiny, tmp_path, make_samples(1)), budget=130, layout=ALIKE)
    assert [row.trained_tokens for row in runner.select_fullest(rows)] == [38, 30]
    batch = CreditedBatch(SampleBatch([row.sample for row in rows]), rows, {"3": "out of memory"})
    division = Division(step_size=4, num_iterations=1, accumulation_steps=4)
    assert [row.sample.sample_id for row in division.select_gate_rows(batch)] == ["2"]


def test_a_loss_may_choose_some_of_the_rows(tiny: Path, tmp_path: Path) -> None:
    """Their log-probabilities are those of the rows that it gives, whether samples share tokens or not."""

    def first_two(trainer: Any, model: Any, inputs: Any, default: Any) -> torch.Tensor:
        size = len(inputs["prompt_ids"])
        chosen = {
            name: value[:2] if isinstance(value, torch.Tensor) and value.dim() and len(value) == size else value
            for name, value in inputs.items()
        }
        return default(model, chosen)

    updates = [
        train(build(tiny, tmp_path / packing, make_samples(4), first_two, packing=packing, loss_type="grpo"))
        for packing in ("trie", "none")
    ]
    assert updates[1].norm() > 0
    assert (updates[0] - updates[1]).norm() <= 5e-5 * updates[1].norm()
