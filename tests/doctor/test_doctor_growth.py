"""The disk's finding: what a run keeps against the room there."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from clawrl_trl.doctor.machine import describe_growth
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.script import parse
from clawrl_trl.script.memory import check_disk
from clawrl_trl.tiny import MODEL_PATH

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("free", "status", "fix"),
    [
        (100 * GIB, "ok", None),
        (7.6 * GIB, "warn", "--keep_versions 48"),
        (4 * GIB, "fail", "--keep_versions 19"),
        (1 * GIB, "fail", "another --run;"),
    ],
)
def test_the_kept_versions_need_room(free: float, status: str, fix: str | None) -> None:
    # 126 MiB, an adapter of a 4B model: 50 of them and three optimizers of twice that and a copy take 7.26 GiB.
    finding = describe_growth(126 * MIB, free)
    assert finding.status == status and "50 policy versions of 126.0 MiB" in finding.detail
    assert "take 7.3 GiB" in finding.detail
    assert (fix is None) == (finding.fix is None) and (fix or "") in (finding.fix or "")


def test_a_run_is_told_what_it_will_keep(tmp_path: Path) -> None:
    flags = ["--output_dir", str(tmp_path / "run"), "--keep_versions", "7", "--keep_training_states", "2"]
    _, config, model, settings = parse(flags)
    finding = check_disk(config, model, settings)
    weights = Shape.of(MODEL_PATH).adapter(model.lora_r) * 4
    assert f"7 policy versions of {weights / MIB:.1f} MiB, 2 of them" in finding.detail
    assert not (tmp_path / "run").exists()


def test_a_run_without_room_is_told_the_flag_of_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, config, model, settings = parse(["--output_dir", str(tmp_path / "run")])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=MIB))
    finding = check_disk(config, model, settings)
    assert finding.status == "fail" and "choose another --output_dir;" in (finding.fix or "")


def test_of_all_versions_the_usual_number_is_reckoned() -> None:
    assert describe_growth(MIB, 100 * 2**30, versions=0).detail == describe_growth(MIB, 100 * 2**30).detail
