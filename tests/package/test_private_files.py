"""A run's folders and files are its owner's alone, whatever the umask, and nothing beside them is changed."""

import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tensordict import TensorDict

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.ledger import Ledger, events
from clawrl_trl.policies import PolicyStore
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.supervisor import Child, Supervisor


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """The umask of a careless machine, on which everybody may write what is not protected."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """What others may read or enter, with its modes."""
    modes = {path: path.lstat().st_mode for path in (folder, *folder.rglob("*")) if not path.is_symlink()}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in modes.items() if mode & 0o077}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fill(folder: Path) -> Ledger:
    """A run with one of everything that is written while it is served, trained and measured."""
    run = RunFolder(folder).make()
    ServeSettings(run=str(folder)).save()
    run.announce("engine", "http://127.0.0.1:1", key="secret")
    ledger = Ledger.open(run.ledger)
    with ledger.transaction() as tx:
        events.log(tx, "started", "0")
    supervisor = Supervisor(run.logs)
    process = supervisor.start(Child("engine", [sys.executable, "-c", "print('ready')"])).process
    assert process is not None and process.wait(60) == 0
    store = PolicyStore(run.policies)
    started = store.begin(1)
    save_file({"weight": torch.ones(2)}, started / "adapter_model.safetensors")
    (started / "training_state" / "trainer_state.json").write_text("{}")
    store.finish(1)
    picture = TensorDict({"screenshot": torch.zeros(3, 4, 4, dtype=torch.uint8), "step": 1})
    picture.set_non_tensor("session_id", "chat")
    Screenshots(folder).keep(picture)
    return ledger


def test_what_a_run_writes_is_its_owners_alone(tmp_path: Path) -> None:
    ledger = fill(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").rglob("*")}
    assert {"ledger.db", "ledger.db-wal", "ledger.db-shm", "engine.log", "adapter_model.safetensors", "1.png"} <= names
    assert open_to_others(tmp_path / "run") == {}
    assert Image.open(tmp_path / "run" / "screenshots" / "chat" / "1.png").size == (4, 4)
    ledger.close()


def test_the_page_of_settings_names_the_one_file_that_holds_a_key(tmp_path: Path) -> None:
    fill(tmp_path / "run").close()
    holders = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert [path.name for path in holders] == ["engine.json"] and holders[0].stat().st_mode & 0o777 == 0o600
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    keys = page.partition("## Keys")[2].partition("\n## ")[0]
    assert "`engine.json`" in keys and "never written to disk" not in keys


def test_a_run_of_an_earlier_version_is_closed_and_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder(tmp_path / "run")
    fill(run.path).close()
    (run.path / "README.md").write_text("what transformers wrote")
    script = run.policies / "policy-v1" / "script.sh"
    script.write_text("exit")
    for path in (run.path, *run.path.rglob("*")):
        path.chmod(0o777 if path.is_dir() or path == script else 0o666)
    outside = tmp_path / "outside"
    outside.write_text("not the run's")
    (run.logs / "link.log").symlink_to(outside)
    with caplog.at_level(logging.WARNING):
        run.make()
        run.make()
    assert open_to_others(run.path) == {}
    assert (mode(script), mode(outside)) == (0o700, 0o666)
    (line,) = caplog.messages
    assert str(run.path) in line and "private now" in line


@pytest.mark.parametrize("shared", ["sticky", "other folders", "other files"])
def test_a_folder_that_is_more_than_a_run_keeps_its_modes(tmp_path: Path, shared: str) -> None:
    folder = tmp_path / "shared"
    (folder / "project" if shared == "other folders" else folder).mkdir(parents=True)
    folder.chmod(0o1777 if shared == "sticky" else 0o755)
    before = mode(folder)
    (folder / "notes.json").write_text("{}")
    ledger = fill(folder)
    RunFolder(folder).make()
    theirs = {".", "notes.json"} | ({"project"} if shared == "other folders" else set())
    assert mode(folder) == before and set(open_to_others(folder)) == theirs
    ledger.close()


def test_the_parents_of_a_new_run_are_made_as_others_are(tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "live").make()
    assert mode(tmp_path / "runs") == 0o777 and mode(tmp_path / "runs" / "live") == 0o700


def test_a_ledger_beside_the_run_is_closed_too(tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats.db"
    Ledger.open(path).close()
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    path.chmod(0o644)
    Ledger.open(path).close()
    assert mode(path) == 0o600
