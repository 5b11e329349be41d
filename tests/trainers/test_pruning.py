"""Pruning of policy versions: which ones go, what is told of them, and what a crash in between leaves."""

import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies import PolicyStore, pin_version, prune_versions, remove_pruned, rollback
from clawrl_trl.trainers import AsyncGRPOConfig

SPAWN = multiprocessing.get_context("spawn")


def publish(ledger: Ledger, store: PolicyStore, version: int, parent: int, *, state: str = "serving") -> None:
    folder = store.begin(version)
    (folder / "adapter_model.safetensors").write_bytes(bytes([version]) * 64)
    path = f"{store.root.name}/{store.finish(version).name}"
    with ledger.transaction() as tx:
        policies.add(tx, Policy(version=version, parent=parent, path=path, sha256=store.sha256(version)))
        if state == "serving":
            policies.promote(tx, version)
        elif state == "rejected":
            policies.reject(tx, version, "gate")


def line(ledger: Ledger, store: PolicyStore, count: int) -> None:
    for version in range(1, count + 1):
        publish(ledger, store, version, version - 1)


def list_folders(store: PolicyStore) -> list[int]:
    return sorted(int(path.name.removeprefix("policy-v")) for path in store.root.iterdir())


def states(ledger: Ledger) -> dict[int, str]:
    with ledger.reader() as tx:
        return {policy.version: policy.state for policy in policies.all(tx)}


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "policies")


def prune(ledger: Ledger, store: PolicyStore, keep: int, current: int, max_staleness: int = 1) -> list[int]:
    return prune_versions(ledger, store, keep=keep, current=current, max_staleness=max_staleness)


def test_the_newest_versions_keep_their_weights(ledger: Ledger, store: PolicyStore) -> None:
    line(ledger, store, 6)
    assert prune(ledger, store, 3, 6) == [1, 2, 3]
    assert list_folders(store) == [4, 5, 6]
    assert states(ledger) == {0: "retired", 1: "pruned", 2: "pruned", 3: "pruned", 4: "retired", 5: "retired"} | {
        6: "serving"
    }
    with ledger.reader() as tx:
        assert [policy.version for policy in policies.all(tx) if policy.path] == [4, 5, 6]
    assert prune(ledger, store, 3, 6) == []


def test_ancestors_of_the_serving_version_come_before_newer_ones(ledger: Ledger, store: PolicyStore) -> None:
    line(ledger, store, 5)
    rollback(ledger, 2, store=store)
    publish(ledger, store, 6, 2)
    assert prune(ledger, store, 3, 6) == [3, 4, 5]
    assert list_folders(store) == [1, 2, 6]


def test_fresh_pinned_and_waiting_versions_stay(ledger: Ledger, store: PolicyStore) -> None:
    line(ledger, store, 6)
    publish(ledger, store, 7, 6, state="candidate")
    pin_version(ledger, 1, True)
    assert prune(ledger, store, 2, 7, max_staleness=3) == [2]
    assert list_folders(store) == [1, 3, 4, 5, 6, 7]
    pin_version(ledger, 1, False)
    assert prune(ledger, store, 2, 7, max_staleness=3) == [1]


def test_rejected_versions_lose_their_files_and_keep_their_reason(ledger: Ledger, store: PolicyStore) -> None:
    line(ledger, store, 2)
    publish(ledger, store, 3, 2, state="rejected")
    publish(ledger, store, 4, 2)
    assert prune(ledger, store, 3, 4) == [3]
    assert states(ledger)[3] == "rejected" and list_folders(store) == [1, 2, 4]
    with ledger.reader() as tx:
        row = policies.get(tx, 3)
        assert row is not None and row.reason == "gate" and row.path is None


def test_a_pruned_version_can_not_be_rolled_back_to_or_pinned(ledger: Ledger, store: PolicyStore) -> None:
    line(ledger, store, 4)
    prune(ledger, store, 2, 4)
    with pytest.raises(UserError, match=r"^Version 1 was pruned.*choose one of 0, 3\.$"):
        rollback(ledger, 1, store=store)
    with pytest.raises(UserError, match="was pruned"):
        pin_version(ledger, 1, True)
    with pytest.raises(UserError, match="no policy version 9"):
        pin_version(ledger, 9, True)
    assert rollback(ledger, store=store).version == 3


@pytest.mark.parametrize("count", [-1, 1])
def test_no_way_back_is_no_setting(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="keep_versions"):
        AsyncGRPOConfig(output_dir=str(tmp_path), keep_versions=count, use_cpu=True)


def _prune_and_die(path: str, root: str, moment: str) -> None:
    ledger, store = Ledger.open(path), PolicyStore(root)

    def die(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "before":
        store.remove = die  # type: ignore[method-assign]
    else:
        remove = store.remove
        store.remove = lambda version: (remove(version), version == 2 and die())  # type: ignore[method-assign,assign]
    prune_versions(ledger, store, keep=2, current=5, max_staleness=1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "within"])
def test_pruning_goes_on_after_a_crash(tmp_path: Path, store: PolicyStore, moment: str) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    line(ledger, store, 5)
    process = SPAWN.Process(target=_prune_and_die, args=(str(ledger.path), str(store.root), moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [version for version, state in states(ledger).items() if state == "pruned"] == [1, 2, 3]
    assert list_folders(store) == ([1, 2, 3, 4, 5] if moment == "before" else [3, 4, 5])
    remove_pruned(ledger, store)
    assert list_folders(store) == [4, 5]
    with ledger.reader() as tx:
        assert [policy.version for policy in policies.all(tx) if policy.path] == [4, 5]
    ledger.close()


def test_what_can_not_be_removed_is_left_and_tried_again(
    ledger: Ledger, store: PolicyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line(ledger, store, 5)
    rmtree = shutil.rmtree

    def refuse(path: Path) -> None:
        if path == store.folder(2):
            raise PermissionError(13, "Permission denied", str(path))
        rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        assert prune(ledger, store, 2, 5) == [1, 2, 3]
    assert list_folders(store) == [2, 4, 5] and "version 2" in caplog.text
    with ledger.reader() as tx:
        assert [policy.version for policy in policies.all(tx) if policy.path] == [2, 4, 5]
    remove_pruned(ledger, store)
    assert list_folders(store) == [4, 5]


def test_of_a_link_only_the_link_is_removed(ledger: Ledger, store: PolicyStore, tmp_path: Path) -> None:
    line(ledger, store, 3)
    elsewhere = store.folder(1).rename(tmp_path / "elsewhere")
    store.folder(1).symlink_to(elsewhere)
    assert prune(ledger, store, 2, 3) == [1]
    assert list_folders(store) == [2, 3] and (elsewhere / "adapter_model.safetensors").is_file()


STEPS = st.lists(st.sampled_from(["train", "train", "train", "reject", "rollback", "pin", "prune"]), max_size=20)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(2, 4), st.integers(0, 2))
def test_whatever_happens_the_line_keeps_its_weights(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], keep: int, max_staleness: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    ledger, store = Ledger.open(folder / "ledger.db"), PolicyStore(folder / "policies")
    parents = {0: 0}
    pinned: set[int] = set()
    serving = 0
    for step in [*steps, "prune"]:
        newest = max(parents)
        if step in ("train", "reject"):
            parents[newest + 1] = serving
            publish(ledger, store, newest + 1, serving, state="serving" if step == "train" else "rejected")
            serving = newest + 1 if step == "train" else serving
        elif step == "rollback" and serving:
            serving = rollback(ledger, store=store).version
        elif step == "pin" and states(ledger)[newest] != "pruned" and newest:
            pin_version(ledger, newest, True)
            pinned.add(newest)
        elif step == "prune":
            before = set(list_folders(store)) if store.root.is_dir() else set()
            prune_versions(ledger, store, keep=keep, current=serving, max_staleness=max_staleness)
            after = set(list_folders(store)) if store.root.is_dir() else set()
            back, ancestors = serving, []
            while back:
                ancestors.append(back)
                back = parents[back]
            needed = set(ancestors[: max(keep, max_staleness + 1)]) | pinned
            assert needed & before <= after
            assert len(after - needed) <= keep
            with_path = {version for version, state in states(ledger).items() if state == "pruned"}
            assert not with_path & after
    ledger.close()
