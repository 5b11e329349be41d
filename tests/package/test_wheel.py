"""The wheel holds exactly the modules and data of the tree: the mapping into one import name is complete."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"clawrl_trl": "clawrl_trl", "envs": "clawrl_trl/envs", "trainers": "clawrl_trl/trainers"}


def _tree() -> set[str]:
    return {
        f"{name}/{path.relative_to(ROOT / folder)}"
        for folder, name in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_wheel_holds_the_tree(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == _tree()


def test_the_three_folders_import_under_one_name() -> None:
    import clawrl_trl.envs
    import clawrl_trl.trainers

    assert Path(clawrl_trl.envs.__file__).parent.name == "envs"
    assert Path(clawrl_trl.trainers.__file__).parent.name == "trainers"


def test_serving_imports_no_torch() -> None:
    code = (
        "import sys, clawrl_trl.cli.main, clawrl_trl.serving.serve, clawrl_trl.ledger, clawrl_trl.gateway.app, "
        "clawrl_trl.policies.versions; "
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_reports_its_use() -> None:
    code = "import clawrl_trl, huggingface_hub.constants as c; print(c.HF_HUB_DISABLE_TELEMETRY)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
