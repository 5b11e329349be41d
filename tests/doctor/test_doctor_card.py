"""The plan of a run on a card: its parts, what it advises, and what it refuses."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.cli.main import main
from clawrl_trl.doctor.card import LEAST_PASS, STEP, CardPlan
from clawrl_trl.doctor.memory import GIB, QWEN3, USABLE, Plan, estimate
from clawrl_trl.errors import UserError
from clawrl_trl.script import parse
from clawrl_trl.script.memory import check_card

SMALL = CardPlan(QWEN3["Qwen3-4B"], Plan(micro_tokens=32_768), card=24 * GIB, share=0.45, context=32_768)


@given(
    st.sampled_from(sorted(QWEN3)),
    st.sampled_from([8, 16, 24, 48, 80, 141]),
    st.floats(0.1, 0.9),
    st.booleans(),
    st.sampled_from(["bfloat16", "4bit", "float32"]),
)
def test_the_longest_pass_fits_and_a_longer_one_does_not(
    name: str, card: int, share: float, apart: bool, kind: str
) -> None:
    plan = CardPlan(QWEN3[name], Plan(engine=kind, trainer=kind), card * GIB, share, 8192, apart=apart)
    engine = 0.0 if apart else share * card * GIB
    longest = plan.longest_pass
    assert longest == 0 or plan.measure_trainer(longest) + engine <= USABLE * card * GIB
    assert longest == 131_072 or plan.measure_trainer(longest + STEP) + engine > USABLE * card * GIB


def test_the_parts_are_the_whole() -> None:
    parts = list(SMALL.list_parts())
    engine = sum(size for who, _, _, size in parts if who == "engine")
    assert engine == pytest.approx(SMALL.share * SMALL.card)
    trainer = sum(size for who, _, _, size in parts if who == "trainer")
    assert trainer == pytest.approx(sum(estimate(SMALL.shape, SMALL.plan).trainer.values()))


def test_what_is_advised_fits() -> None:
    for name, card, share in [("Qwen3-4B", 24, 0.3), ("Qwen3-8B", 24, 0.45), ("Qwen3-14B", 48, 0.7)]:
        plan = replace(SMALL, shape=QWEN3[name], card=card * GIB, share=share, context=16_384)
        faults = [finding for finding in plan.judge() if finding.status != "ok"]
        assert faults
        fix = faults[0].fix or ""
        kind = "4bit" if "--load_in_4bit" in fix else "bfloat16"
        advised = float(fix.split("--vllm_gpu_memory_utilization ")[1].split()[0])
        mended = replace(plan, share=advised, plan=Plan(engine=kind, trainer=kind, micro_tokens=LEAST_PASS))
        assert [finding.status for finding in mended.judge()] == ["ok", "ok"], fix


def test_what_no_flag_mends_says_so() -> None:
    plan = replace(SMALL, shape=QWEN3["Qwen3-32B"], card=24 * GIB)
    assert all(finding.status == "fail" and "a larger card" in (finding.fix or "") for finding in plan.judge())


def test_an_engine_alone_leaves_the_trainer_its_card() -> None:
    assert replace(SMALL, apart=True).trainer_room == USABLE * SMALL.card


def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["clawrl", "doctor", "--gpu_memory_gb", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_readme_s_model_on_24_gb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["24", "--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm"]
    code, text = run_command(monkeypatch, capsys, *flags)
    assert code == 0 and "a pass of more than 8,192 tokens does not fit" in text
    assert "--max_pass_tokens 8192 --max_sample_tokens 8192" in text
    code, text = run_command(monkeypatch, capsys, *flags, "--max_pass_tokens", "8192", "--max_sample_tokens", "8192")
    assert code == 0 and "passes of up to 8,192 tokens fit" in text


def test_what_cannot_fit_ends_with_1_and_json_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["16", "--model_name_or_path", "Qwen/Qwen3-8B", "--engine", "vllm", "--json"]
    code, text = run_command(monkeypatch, capsys, *flags)
    content = json.loads(text)
    assert code == 1 and {finding["status"] for finding in content["findings"]} == {"fail"}
    assert {part["who"] for part in content["parts"]} == {"engine", "trainer"}


def pretend_card(monkeypatch: pytest.MonkeyPatch, gigabytes: int) -> None:
    card: Any = SimpleNamespace(total_memory=gigabytes * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_a_start_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-8B", "--engine", "vllm", "--output_dir", "runs/x"]
    _, config, model, settings = parse(flags, on_card=True)
    assert check_card(config, model, settings) == []  # no card, nothing to find
    pretend_card(monkeypatch, 24)
    with pytest.raises(UserError, match=r"can't fit on 24 GiB .*--load_in_4bit true"):
        check_card(config, model, settings)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert check_card(config, model, settings) == []


def test_a_start_with_short_passes_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm", "--output_dir", "runs/x"]
    _, config, model, settings = parse(flags, on_card=True)
    pretend_card(monkeypatch, 24)
    assert [finding.status for finding in check_card(config, model, settings)] == ["warn", "warn"]
    pretend_card(monkeypatch, 80)
    assert check_card(config, model, settings) == []


def test_somebody_else_s_engine_takes_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-8B", "--engine", "http://127.0.0.1:1", "--output_dir", "runs/x"]
    _, config, model, settings = parse(flags, on_card=True)
    pretend_card(monkeypatch, 40)
    assert check_card(config, model, settings) == []
