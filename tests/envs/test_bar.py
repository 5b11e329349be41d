"""A bar that nobody can see any more stops nothing."""

import os
import threading

import pytest

from clawrl_trl.envs.runs.progress import bar


def test_other_end_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    screen = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr("sys.stderr", screen)
    shown = bar(total=20, mininterval=0)
    os.close(reader)
    workers = [threading.Thread(target=shown.update, daemon=True) for _ in range(20)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(timeout=30)
        assert not one.is_alive(), "the bar kept its lock"
    assert shown.n == 20
    shown.close()
    with pytest.raises(BrokenPipeError):
        screen.close()


def test_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(total=2, desc="Evaluation before") as shown:
        shown.update(2)
    assert "Evaluation before" in capsys.readouterr().err
