"""A real browser whose pages, on another port of this machine, try to use a gateway that asks for no key."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import Rig, running

from clawrl_trl.envs.gui.browser import find_chromium
from clawrl_trl.envs.gui.file_server import FileServer

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

FETCH = """async url => {
  const body = JSON.stringify({messages: [{role: "user", content: "from a page"}]});
  try {
    const answer = await fetch(url, {method: "POST", mode: MODE, headers: {"Content-Type": TYPE}, body});
    return answer.type === "opaque" ? "opaque" : answer.status;
  } catch { return "failed"; }
}"""
FORM = """url => new Promise(done => {
  const frame = Object.assign(document.createElement("iframe"), {name: "there"});
  const form = Object.assign(document.createElement("form"), {method: "post", action: url, target: "there"});
  form.enctype = "text/plain";
  form.innerHTML = `<input name='{"messages":[{"role":"user","content":"from a form' value='"}]}'>`;
  document.body.append(frame, form);
  frame.onload = () => done("loaded");
  form.submit();
})"""


def in_a_page(folder: Path, script: str, url: str) -> Any:
    """What a script comes to that a page of another port runs."""
    (folder / "page.html").write_text("<!doctype html><body>")
    with playwright.sync_playwright() as started, FileServer(folder) as server:
        chromium = started.chromium.launch(executable_path=find_chromium(), chromium_sandbox=os.geteuid() != 0)
        try:
            page = chromium.new_page()
            page.goto(server.url("page.html"))
            return page.evaluate(script, url)
        finally:
            chromium.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "run") as rig:
        yield rig


def fetching(mode: str, kind: str) -> str:
    return FETCH.replace("MODE", repr(mode)).replace("TYPE", repr(kind))


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (fetching("no-cors", "text/plain"), "opaque"),
        (fetching("cors", "application/json"), "failed"),
        (FORM, "loaded"),
    ],
    ids=["no-cors", "cors", "form"],
)
def test_a_page_on_another_port_reaches_nobody(rig: Rig, tmp_path: Path, script: str, outcome: str) -> None:
    assert in_a_page(tmp_path, script, f"{rig.url}/chat/completions") == outcome
    assert rig.engine.requests == [] and rig.turns() == []


def test_a_page_that_is_listed_reads_its_reply(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><body>")
    with (
        FileServer(tmp_path) as server,
        running(tmp_path / "run", allowed_origins=server.url("").rstrip("/")) as rig,
        playwright.sync_playwright() as started,
    ):
        chromium = started.chromium.launch(executable_path=find_chromium(), chromium_sandbox=os.geteuid() != 0)
        try:
            page = chromium.new_page()
            page.goto(server.url("page.html"))
            url = f"{rig.url}/chat/completions"
            assert page.evaluate(fetching("cors", "application/json"), url) == 200
        finally:
            chromium.close()
        assert len(rig.turns()) == 1
