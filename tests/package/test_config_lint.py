"""A lint of presets and configurations of named models: what each would meet on its card, by arithmetic."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawrl_trl.config.presets import BUNDLED, FOLDER, list_presets, load_preset
from clawrl_trl.doctor.card import CardPlan
from clawrl_trl.doctor.memory import GIB, QWEN3, USABLE
from clawrl_trl.script import memory, parse
from clawrl_trl.script.memory import plan_on_card

Launch = Callable[[Path], None]
CONFIGS = sorted((Path(__file__).parents[2] / "examples" / "configs").glob("*_qwen3_*.yaml"))
PRESETS = [name for name in list_presets() if name != BUNDLED]
CARDS = {"qwen3-0.6b-8gb": 8, "qwen3-4b-24gb": 24, "qwen3-8b-80gb": 80, "qwen3-4b-2x24gb": 24}
CONFIG_CARDS = {"terminal_qwen3_8b": 80, "toolcall_qwen3_4b": 48, "gui_qwen3_vl_8b": 80, "swe_qwen3_32b": 80}
SIZE = re.compile(r"Qwen/(Qwen3)(?:-VL)?(-\d+B).*")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENV_TYPE", "MODEL_PATH", "MAX_STEPS", "PARALLEL_ENVS", "ACTOR_GPUS", "ROLLOUT_GPUS"):
        monkeypatch.delenv(name, raising=False)


def read_runs() -> list[Any]:
    """Flags of every preset by every method, in chats and in an environment, and of every configuration."""
    runs = []
    for name in PRESETS:
        model = ["--model_name_or_path", "some/model"] if name == "named" else []
        for method in ("binary", "opd", "combine"):
            flags = ["--preset", name, "--method", method, *model]
            runs.append(pytest.param(flags, id=f"{name}-{method}"))
            runs.append(pytest.param([*flags, "--env", "swe"], id=f"{name}-{method}-swe"))
    return [*runs, *(pytest.param(["--config", str(path)], id=path.stem) for path in CONFIGS)]


@pytest.mark.parametrize("flags", read_runs())
def test_a_named_model_trains_within_its_memory_and_its_staleness(flags: list[str], launch_processes: Launch) -> None:
    if flags[0] == "--config":
        launch_processes(Path(flags[1]))
    script, config, model, settings = parse([*flags, "--output_dir", "runs/x"])
    # On this machine, without a GPU, `auto` has become float32, unless the weights have 4 bits.
    assert model.dtype in ("bfloat16", "float32") and settings.dtype == model.dtype
    assert load_preset(str(script.preset)).select_values(script.method, with_env=False)["dtype"] == "auto"
    assert config.gradient_checkpointing and config.max_kl <= 0.2 and config.learning_rate <= 3e-5
    assert config.adam_epsilon >= 1e-7 and config.adam_beta2 == 0.98
    assert config.step_batch_size >= 16 and config.batch_timeout >= 60
    if script.env is None:
        assert config.kl_estimator == "exact" and config.beta > 0
        return
    assert config.beta == 0
    wave = script.find_wave()
    assert wave.turns <= (config.max_staleness + 1) * config.step_batch_size * config.publish_steps
    assert settings.max_running >= min(wave.size, script.requests_at_once)


def plan(flags: list[str], card: int) -> CardPlan:
    """The run's plan on a card of so many GB."""
    _, config, model, settings = parse([*flags, "--output_dir", "runs/x"], on_card=True)
    assert not model.load_in_4bit or "--quantization bitsandbytes" in settings.vllm_args, (
        "one policy, trained and served"
    )
    return plan_on_card(config, model, settings, card * GIB)


@pytest.mark.parametrize("name", CARDS)
def test_engine_and_trainer_fit_on_the_card_of_a_preset(name: str) -> None:
    card = plan(["--preset", name], CARDS[name])
    assert [finding.status for finding in card.judge()] == ["ok", "ok"]
    used = sum(size for who, _, _, size in card.list_parts() if who == "trainer" or not card.apart)
    assert 0.8 * USABLE * card.card <= used <= USABLE * card.card, "the card is used"


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_engine_of_a_configuration_holds_its_context(
    path: Path, launch_processes: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_processes(path)
    # Of a model that sees, the language model; its vision tower takes 1.2 GiB more.
    monkeypatch.setattr(memory, "find_shape", lambda *args: QWEN3[SIZE.sub(r"\1\2", args[-1].model_name_or_path)])
    card = plan(["--config", str(path)], CONFIG_CARDS[path.stem])
    assert card.cache_tokens >= card.context + 16_384


@pytest.mark.parametrize("name", PRESETS)
def test_each_value_of_a_preset_has_its_reason(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    explained: set[str] = set()
    for above, line in zip(["", *lines], lines, strict=False):
        flag = line.strip().partition(":")[0]
        if line.startswith("  ") and "#" not in line.split(":")[0] and not line.rstrip().endswith(":"):
            has_reason = "#" in line or above.strip().startswith("#") or flag in explained
            # A reason may be that of two values, one below the other.
            assert has_reason or above.strip().partition(":")[0] in explained, line
            explained.add(flag)
    assert yaml.safe_load("\n".join(lines))["summary"].endswith(".")


def test_a_preset_of_several_gpus_says_how_many_processes_it_is_launched_with() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    for name in PRESETS:
        preset = load_preset(name)
        if count := preset.select_values("binary", with_env=False).get("actor_gpus"):
            assert f"--num_processes {count}" in preset.summary
            assert f"--num_processes {count} examples/train.py --preset {name}" in page
