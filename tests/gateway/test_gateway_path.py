"""The path of a chat request through the gateway: which modules it goes through, and that nothing is built twice."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from gateway_rig import Rig, running

import clawrl_trl.gateway
from clawrl_trl.gateway import body
from clawrl_trl.gateway.record import Record
from clawrl_trl.gateway.sessions.incoming import IncomingRequest, Prompt
from clawrl_trl.gateway.sessions.kinds import RequestSetting
from clawrl_trl.gateway.sessions.placement import Placement
from clawrl_trl.gateway.wire import CHAT
from clawrl_trl.http.body import LARGE_BYTES
from clawrl_trl.ledger import schema

HELLO = [{"role": "user", "content": "hello"}]

REQUEST_MODULES = {"routes.chat", "admission", "sessions.incoming", "exchange", "sessions.sessions", "record"}
"""Modules of the gateway whose functions are given the request itself, or make it."""

PATH = [*REQUEST_MODULES, "upstream", "ledger.turns"]
"""What a chat request goes through up to the ledger: as itself, as bytes for the engine, as a row."""


class ArgumentTrace:
    """Profile function that notes which modules' functions are given or return a value of a type."""

    def __init__(self, *types: type) -> None:
        self.types = types
        self.modules: dict[type, set[str]] = {kind: set() for kind in types}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event not in ("call", "return") or not module.startswith("clawrl_trl."):
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        values = [argument] if event == "return" else [frame.f_locals.get(name) for name in names]
        for value in values:
            for kind in self.types:
                if isinstance(value, kind):
                    self.modules[kind].add(module.removeprefix("clawrl_trl.").removeprefix("gateway."))


def count_calls(monkeypatch: pytest.MonkeyPatch, counts: Counter[str], owner: Any, name: str, label: str) -> None:
    """Count the calls of a function or constructor, which goes on to work as before."""
    function: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        counts[label] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_through_no_more_than_eight_modules(tmp_path: Path, stream: bool) -> None:
    trace = ArgumentTrace(IncomingRequest, schema.Turn)
    previous = sys.getprofile()
    threading.setprofile(trace)  # for the server's thread and those it starts
    try:
        with running(tmp_path / "run") as rig, rig.client() as client:
            reply = client.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
            assert reply.status_code == 200
            assert rig.turn().messages == HELLO
    finally:
        threading.setprofile(previous)
    assert trace.modules[IncomingRequest] == REQUEST_MODULES
    # The row goes from the record to `ledger.turns`; the ledger's own parts behind it are not on the list.
    assert trace.modules[schema.Turn] == {"record", "ledger.turns", "ledger.history", "ledger.schema", "ledger.states"}
    assert len(PATH) <= 8
    documented = clawrl_trl.gateway.__doc__ or ""
    assert all(f"`{name}`" in documented for name in PATH)


@pytest.mark.parametrize("text", ["hello", "word " * (LARGE_BYTES // 4)], ids=["short", "read-on-a-thread"])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_chat_is_built_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch, stream: bool, text: str) -> None:
    counts: Counter[str] = Counter()
    for kind in (IncomingRequest, Prompt, RequestSetting, Placement, Record):
        count_calls(monkeypatch, counts, kind, "__init__", kind.__name__)
    count_calls(monkeypatch, counts, body, "parse", "parse")
    with rig.client() as client:
        asked = {"messages": [{"role": "user", "content": text}], "stream": stream}
        assert client.post("/v1/chat/completions", json=asked).status_code == 200
    assert rig.turn().messages == asked["messages"]
    assert counts == dict.fromkeys(("IncomingRequest", "Prompt", "RequestSetting", "Placement", "Record", "parse"), 1)


def test_building_a_record_opens_no_conversation(rig: Rig) -> None:
    request = IncomingRequest(CHAT, "local", {}, {"messages": HELLO})
    record = Record(request, policy_version=0, model="base", engine="engine", temperature=1.0)
    assert record.turn_ids() == [record.id]
    assert len(rig.gateway.sessions) == 0
    [placement] = rig.gateway.sessions.place(request)
    assert len(rig.gateway.sessions) == 1 and placement.kind == "main"


def test_each_prompt_of_a_completion_is_placed_by_itself(rig: Rig) -> None:
    with rig.client() as client:
        reply = client.post("/v1/completions", json={"prompt": ["one", "two"], "stream": False})
    assert reply.status_code == 200, reply.text
    assert len(rig.gateway.sessions) == 2


@pytest.mark.parametrize("headers", [{"X-Session-Id": "s" * 513}, {"X-Group-Id": "g" * 513}])
def test_a_refused_name_opens_no_conversation(rig: Rig, headers: dict[str, str]) -> None:
    with rig.client() as client:
        reply = client.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers)
    assert reply.status_code == 400
    assert len(rig.gateway.sessions) == 0 and not rig.turns() and rig.gateway.in_flight == 0
