"""Presets: what they set, what is stronger than they, and what is said of a wrong one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.config.presets import FOLDER, list_presets, load_preset
from clawrl_trl.errors import UserError
from clawrl_trl.script import parse

QUIET = ["--output_dir", "runs/x"]


@pytest.mark.parametrize("name", list_presets())
@pytest.mark.parametrize("method", ["binary", "opd", "combine"])
@pytest.mark.parametrize("env", [None, "swe"])
def test_each_shipped_preset_fits_each_method(name: str, method: str, env: str | None) -> None:
    flags = ["--preset", name, "--method", method, *(["--env", env] if env else []), *QUIET]
    script, config, model, settings = parse(flags)
    values = load_preset(name).select_values(method, with_env=env is not None)
    assert script.preset == name and load_preset(name).summary
    if values.get("dtype") == "auto":
        values["dtype"] = "bfloat16" if values.get("load_in_4bit") else "float32"
    for flag, value in values.items():
        holders = [each for each in (config, model, settings) if hasattr(each, flag)]
        assert holders and all(getattr(each, flag) == value for each in holders), flag


def test_the_bundled_model_has_its_preset_and_named_ones_have_theirs() -> None:
    script, config, _, settings = parse(["--method", "combine", *QUIET])
    assert script.preset == "tiny"
    chosen = config.learning_rate, config.beta, config.baseline_window, config.opd_top_k
    assert chosen == (3e-3, 0.1, 16, 64) and (config.w_rl, config.w_rl_alone) == (0.3, 1.0)
    assert (config.temperature, settings.temperature, config.max_grad_norm) == (0.9, 0.9, 0.05)
    practised = parse(["--method", "combine", "--env", "swe", *QUIET])[1]
    chosen = practised.learning_rate, practised.baseline_window, practised.support_coef, practised.max_grad_norm
    assert chosen == (2e-3, 0, 0.0, 1.0)
    chats, practice = ([], ["--env", "chat"]), ["--env", "swe"]
    assert [parse([*flags, *QUIET])[3].judge for flags in (*chats, practice)] == ["auto", "auto", "rules"]
    assert parse([*practice, "--judge", "auto", *QUIET])[3].judge == "auto"
    script, config, _, settings = parse(["--method", "combine", "--model_name_or_path", "some/model", *QUIET])
    assert script.preset == "named"
    assert (config.learning_rate, config.w_rl, config.baseline_window, config.max_kl) == (1e-5, 0.3, 16, 0.2)
    assert (config.adam_beta2, config.adam_epsilon, config.gradient_checkpointing) == (0.98, 1e-7, True)
    assert (settings.temperature, settings.dtype, settings.max_model_len) == (0.6, "float32", None)
    for flags in ([], ["--model_name_or_path", "some/model"]):
        script, config, _, _ = parse(["--method", "combine", *flags, "--preset", "none", *QUIET])
        assert script.preset is None and config.learning_rate == 1e-4 and config.baseline_window == 0


def test_a_preset_extends_another_and_each_of_its_values_is_stronger(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "all: {seed: 1, learning_rate: 0.5, beta: 0.5}\nmethods: {opd: {opd_top_k: 5, beta: 0.25}}\n"
        "practice: {all: {learning_rate: 0.125, max_kl: 0.5}}\n"
    )
    own = tmp_path / "own.yaml"
    own.write_text("extends: base.yaml\nall: {beta: 0.75, max_kl: 0.25}\n")
    values = load_preset(str(own)).select_values("opd", with_env=False)
    assert values == {"seed": 1, "learning_rate": 0.5, "beta": 0.75, "opd_top_k": 5, "max_kl": 0.25}
    values = load_preset(str(own)).select_values("binary", with_env=True)
    assert values == {"seed": 1, "learning_rate": 0.125, "beta": 0.75, "max_kl": 0.25}
    own.write_text("extends: named\n")
    assert load_preset(str(own)).select_values("combine", with_env=True) == load_preset("named").select_values(
        "combine", with_env=True
    )
    (tmp_path / "base.yaml").write_text("extends: own.yaml\n")
    own.write_text("extends: base.yaml\n")
    with pytest.raises(UserError, match=r"own\.yaml extends itself"):
        load_preset(str(own))
    own.write_text("extends: enormous\n")
    with pytest.raises(UserError, match=r"'enormous' is unknown"):
        load_preset(str(own))


def test_flags_and_the_config_file_are_stronger_than_a_preset(tmp_path: Path) -> None:
    preset, config = tmp_path / "mine.yaml", tmp_path / "run.yaml"
    preset.write_text("all: {learning_rate: 0.5, beta: 0.5, seed: 5}\nmethods: {opd: {opd_top_k: 5}}\n")
    config.write_text("beta: 0.25\nseed: 4\n")
    flags = ["--preset", str(preset), "--config", str(config), "--seed", "3", "--method", "opd", *QUIET]
    script, trained, _, _ = parse(flags)
    assert (trained.learning_rate, trained.beta, trained.seed, trained.opd_top_k) == (0.5, 0.25, 3, 5)
    assert script.preset == str(preset)
    config.write_text(f"preset: {preset}\n")
    assert parse(["--config", str(config), "--method", "opd", *QUIET])[1].learning_rate == 0.5


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("learning_rate: 1", "has 'learning_rate', which means nothing"),
        ("practice: {env: 1}", "has 'practice.env', which means nothing"),
        ("- a", "must be a YAML mapping"),
        ("all: 3", "all must be a mapping"),
        ("methods: {opd: 3}", "methods.opd must be a mapping"),
        ("practice: [1]", "practice must be a mapping"),
        ("a: [", "can't be read"),
        ("all: {learning_rat: 1}", "sets what there is not: --learning_rat"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(UserError, match=told):
        parse(["--preset", str(tmp_path / "mine.yaml"), *QUIET])


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"--preset 'huge' is unknown: use .*tiny.*, none, or a YAML file"):
        parse(["--preset", "huge", *QUIET])


def test_the_command_lists_what_there_is() -> None:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "presets", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [row["name"] for row in listed] == list_presets()
    root = Path(__file__).parents[2]
    for row in listed:
        assert all((root / place.strip()).is_file() for place in row["measured"].split(",") if place != "-")


def test_a_new_file_is_a_new_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "mine.yaml").write_text("summary: Mine.\nall: {seed: 9}\n")
    monkeypatch.setattr("clawrl_trl.config.presets.FOLDER", tmp_path)
    assert "mine" in list_presets() and parse(["--preset", "mine", *QUIET])[1].seed == 9
