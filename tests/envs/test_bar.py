"""A bar that nobody can see any more stops nothing."""

import os
import threading

import pytest

from clawrl_trl.envs.runs.progress import open_progress_bar


def test_other_end_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    screen = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr("sys.stderr", screen)
    bar = open_progress_bar(total=20, mininterval=0)
    os.close(reader)
    workers = [threading.Thread(target=bar.update, daemon=True) for _ in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=30)
        assert not worker.is_alive(), "the bar kept its lock"
    assert bar.n == 20
    bar.close()
    with pytest.raises(BrokenPipeError):
        screen.close()


def test_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress_bar(total=2, desc="Evaluation before") as bar:
        bar.update(2)
    assert "Evaluation before" in capsys.readouterr().err
