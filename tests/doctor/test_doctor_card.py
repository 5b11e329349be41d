"""The plan of a run on a card: its parts, what it advises, and what it refuses."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config

from clawrl_trl.cli.main import main
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor.card import LEAST_PASS, STEP, CardPlan
from clawrl_trl.doctor.memory import GIB, QWEN3, USABLE, Plan, estimate
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder
from clawrl_trl.script import parse
from clawrl_trl.script.memory import check_card, plan_on_card

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


def plan(*flags: str, card: int = 24) -> CardPlan:
    _, config, model, settings = parse([*flags, "--output_dir", "runs/x"], on_card=True)
    return plan_on_card(config, model, settings, card * GIB)


def check(monkeypatch: pytest.MonkeyPatch, card: int, *flags: str) -> list[str]:
    """Statuses of what a start on a card is warned of."""
    _, config, model, settings = parse([*flags, "--output_dir", "runs/x"], on_card=True)
    with monkeypatch.context() as patched:
        pretend_card(patched, card)
        return [finding.status for finding in check_card(config, model, settings)]


@given(st.sampled_from(sorted(QWEN3)), st.sampled_from([8, 16, 24, 48, 80]), st.integers(1, 32_768))
def test_a_growing_cache_has_what_the_trainer_leaves(name: str, card: int, tokens: int) -> None:
    grown = CardPlan(QWEN3[name], Plan(micro_tokens=tokens), card * GIB, 0.45, 32_768, grows=True)
    engine, trainer = grown.judge()
    if trainer.status == "ok" and engine.status != "fail":
        assert grown.engine_room + grown.measure_trainer(tokens) <= USABLE * grown.card
    if advised := re.search(r"--max_model_len (\d+)", engine.fix or ""):
        length = int(advised[1])
        mended = replace(grown, context=length, plan=Plan(micro_tokens=length))
        assert [finding.status for finding in mended.judge()] == ["ok", "ok"]
    assert "utilization" not in (engine.fix or "") or (engine.fix or "").startswith("--engine vllm")


def test_the_embedded_engine_and_the_trainer_share_24_gb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["24", "--method", "binary", "--model_name_or_path", "Qwen/Qwen3-4B"]
    code, text = run_command(monkeypatch, capsys, *flags)
    advised = re.search(r"--max_model_len \d+ --max_pass_tokens \d+", text)
    assert code == 0 and advised and "utilization" not in text
    code, text = run_command(monkeypatch, capsys, *flags, *advised[0].split())
    assert code == 0 and "->" not in text
    assert plan(*flags[1:], "--vllm_gpu_memory_utilization", "0.9").engine_room == plan(*flags[1:]).engine_room


def test_the_embedded_engine_serves_no_4_bits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["24", "--model_name_or_path", "Qwen/Qwen3-8B"]
    code, text = run_command(monkeypatch, capsys, *flags)
    assert code == 1
    advised = re.search(r"--engine vllm --load_in_4bit true --vllm_args .*utilization [\d.]+", text)
    assert advised, text
    assert run_command(monkeypatch, capsys, *flags, *shlex.split(advised[0]))[0] == 0
    code, text = run_command(monkeypatch, capsys, *flags, *shlex.split(advised[0])[2:])
    assert code == 1 and "--engine vllm" in text
    assert plan(*flags[1:], "--load_in_4bit", "true").need.engine["weights"] == QWEN3["Qwen3-8B"].weights("bfloat16")


def test_the_embedded_engine_s_context_is_cut_to_half_of_the_free_memory() -> None:
    cut = plan("--model_name_or_path", "Qwen/Qwen3-8B")
    free = USABLE * cut.card - cut.engine_fixed
    assert 0 <= free / 2 - cut.context * cut.need.cached_token < 1024 * cut.need.cached_token
    assert plan("--model_name_or_path", "Qwen/Qwen3-8B", "--max_model_len", "32768").context == 32_768


def test_all_weights_have_a_reference_model_beside_them() -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-0.6B", "--use_peft", "false", "--beta"]
    found = [{what: size for _, what, _, size in plan(*flags, beta).list_parts()} for beta in ("0.01", "0")]
    assert found[0]["reference model"] == 4 * QWEN3["Qwen3-0.6B"].parameters
    assert "reference model" not in found[1]
    assert not plan(*flags[:2], "--beta", "0.01").need.trainer["reference"], "an adapter is switched off for it"


def test_vllm_s_type_is_its_own_flag() -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-4B", "--dtype", "float32", "--engine"]
    assert plan(*flags, "vllm").need.engine["weights"] == QWEN3["Qwen3-4B"].weights("bfloat16")
    wide = plan(*flags, "vllm", "--vllm_dtype", "float32").need
    assert wide.engine["weights"] == plan(*flags, "transformers").need.engine["weights"] == wide.trainer["base"]


@pytest.mark.parametrize(("share", "refused"), [(0.25, False), (0.9, True)])
def test_a_trainer_that_attaches_is_judged_beside_the_engine_that_runs(
    share: float, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ServeSettings(run=str(tmp_path), engine="vllm", vllm_gpu_memory_utilization=share).save()
    RunFolder(tmp_path).announce("gateway", "http://127.0.0.1:1")
    flags = ["--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm", "--output_dir", str(tmp_path)]
    flags += ["--max_sample_tokens", "4096", "--max_pass_tokens", "4096", "--max_model_len", "32768"]
    _, config, model, settings = parse(flags, on_card=True)
    pretend_card(monkeypatch, 24)
    if not refused:
        assert check_card(config, model, settings) == [], "an engine that runs has its room"
        return
    with pytest.raises(UserError, match=r"trainer's memory: .*'clawrl serve', which runs already"):
        check_card(config, model, settings)


def test_a_plan_deals_no_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    flags = ["--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm", "--actor_gpus", "2", "--rollout_gpus", "2"]
    assert run_command(monkeypatch, capsys, "80", *flags)[0] == 0


@pytest.mark.parametrize("size", ["0", "-24", "nan", "inf"])
def test_a_card_has_a_size(size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["clawrl", "doctor", f"--gpu_memory_gb={size}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "is no size of a card" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["--quantization fp8", "-q=awq", "--cpu-offload-gb 10", "--kv-cache-dtype fp8", "--gpu_memory_utilization=0.8"],
)
def test_what_vllm_s_own_flags_change_is_no_reason_to_refuse(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm", "--vllm_gpu_memory_utilization", "0.15"]
    with pytest.raises(UserError, match="engine's memory"):
        check(monkeypatch, 24, *flags)
    assert check(monkeypatch, 24, *flags, f"--vllm_args={words}")[0] == "warn"
    with pytest.raises(UserError, match="engine's memory"):
        check(
            monkeypatch,
            24,
            *flags,
            "--load_in_4bit",
            "true",
            "--vllm_args=--quantization bitsandbytes --max-num-seqs 4",
        )


def test_a_model_that_is_quantized_already_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Qwen3Config()  # 8 billion parameters
    config.save_pretrained(tmp_path)
    flags = ["--model_name_or_path", str(tmp_path), "--engine", "vllm"]
    with pytest.raises(UserError, match="can't fit"):
        check(monkeypatch, 16, *flags)
    config.quantization_config = {"quant_method": "fp8"}
    config.save_pretrained(tmp_path)
    assert check(monkeypatch, 16, *flags) == ["warn", "warn"]


def test_a_trainer_apart_is_not_answered_with_the_engine_s_share() -> None:
    flags = ["--engine", "vllm", "--actor_gpus", "1", "--rollout_gpus", "1", "--model_name_or_path"]
    fixes = []
    for name, card, more in (("8B", 16, []), ("8B", 16, ["--use_peft", "false"]), ("4B", 16, [])):
        trainer = plan(*flags, f"Qwen/Qwen3-{name}", *more, card=card).judge()[1]
        assert trainer.status in ("fail", "warn") and "utilization" not in (trainer.fix or "")
        assert "FSDP2" in (trainer.fix or "") and "a larger card" in (trainer.fix or "")
        fixes.append("--load_in_4bit true" in (trainer.fix or ""))
    assert fixes == [True, False, True]
