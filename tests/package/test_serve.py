"""Serving goes on where a part is missing for a moment."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.process import StopRequest
from clawrl_trl.serving.serve import serve
from clawrl_trl.serving.startup import Startup
from clawrl_trl.serving.supervisor import Supervisor


def test_a_gateway_that_died_while_the_judge_started_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[StopRequest] = []
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(Startup, "start_all", lambda startup, settings: replace(settings, port=1))
    monkeypatch.setattr(Supervisor, "watch", lambda supervisor, stop: watched.append(stop))
    assert serve(ServeSettings(run=str(tmp_path / "run")), quiet=True) == 0
    assert len(watched) == 1
