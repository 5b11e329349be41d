"""A native window under Xvfb: a real Tk program, driven by the same actions as a page."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from child_processes import living_children
from torchrl.envs.utils import check_env_specs
from Xlib.display import Display
from Xlib.error import XError
from Xlib.xobject.drawable import Window

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.gui import x11
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.oracle import solve, step_with_calls
from clawrl_trl.envs.gui.x11 import X11Screen
from clawrl_trl.envs.gui.x11_tasks import X11Task

pytestmark = pytest.mark.browser

PROGRAM = """
import tkinter
from pathlib import Path

root = tkinter.Tk()
root.title("Notes")
root.geometry("320x240+0+0")
entry = tkinter.Entry(root, width=20)
entry.place(x=10, y=10, width=200, height=30)

def save():
    Path("note.txt").write_text(entry.get())
    button.configure(text="Saved", bg="black", fg="white")

button = tkinter.Button(root, text="Save", command=save)
button.place(x=10, y=60, width=100, height=40)
entry.bind("<Control-Key-l>", lambda event: (entry.delete(0, "end"), "break")[1])
root.mainloop()
"""
BOX, SAVE = [330, 105], [185, 335]
TASK = X11Task(
    "note",
    "Write Zoe into the box and press Save.",
    ("python", "-c", PROGRAM),
    {"note.txt": "Zoe"},
    (
        {"action": "type", "coordinate": BOX, "text": "Max"},
        {"action": "key", "keys": ["ctrl", "l"]},
        {"action": "type", "text": "Zoe"},
        {"action": "left_click", "coordinate": SAVE},
    ),
)


@pytest.fixture
def env() -> Iterator[GUIEnv]:
    gui_env = GUIEnv([TASK])
    yield gui_env
    gui_env.close()


def test_the_oracle_solves_it_and_doing_nothing_does_not(env: GUIEnv) -> None:
    state = step_with_calls(env, env.reset(), {"action": "terminate"})
    assert state["reward"].item() == -1.0
    state = env.reset()
    assert 'window "Notes" [1] = "320x240 at 0,0"' in state["outline"] and state["screenshot"].shape == (3, 240, 320)
    state = solve(env, state)
    assert state["reward"].item() == 1.0 and state["progress"].item() == 1.0


def test_a_window_is_clicked_by_its_number_and_the_picture_changes(env: GUIEnv) -> None:
    env.reset()
    button = next(element for element in env.elements if element.value == "100x40 at 10,60")
    state = step_with_calls(env, env.reset(), {"action": "wait", "time": 0})
    state = step_with_calls(env, state, {"action": "left_click", "ref": button.ref})
    assert state["difference"].item() > 0.02
    state = step_with_calls(env, state, {"action": "left_click", "ref": 99})
    assert "there is no element [99]" in state["message"]


def test_every_character_is_a_key() -> None:
    text = "a.+ -!é"
    keys = ({"action": "key", "keys": [character]} for character in text)
    oracle = ({"action": "left_click", "coordinate": BOX}, *keys, {"action": "left_click", "coordinate": SAVE})
    with closing(GUIEnv([replace(TASK, expected={"note.txt": text}, oracle=oracle)])) as env:
        assert solve(env, env.reset())["reward"].item() == 1.0


def test_a_program_that_ends_is_dropped() -> None:
    env = GUIEnv([X11Task("gone", "Go.", ("python", "-c", ""), {"a": "b"})])
    try:
        state = env.reset()
        assert state["dropped"] and "ended" in state["reason"]
        assert torch.isnan(step_with_calls(env, state, {"action": "terminate"})["reward"]).all()
    finally:
        env.close()


def test_a_window_that_vanishes_between_two_questions_is_left_out(
    env: GUIEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(XError):
        def __init__(self) -> None:
            pass

    def query_tree(window: Window) -> object:
        if window.get_wm_name() == "Notes":
            raise Gone
        return original(window)

    original = Window.query_tree
    env.reset()
    monkeypatch.setattr(Window, "query_tree", query_tree)
    assert [element.name for element in env.scene.screen.read_outline()] == ["Notes"]  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [X11Screen.capture, X11Screen.read_outline])
def test_a_server_that_a_program_holds_is_not_waited_for(
    env: GUIEnv, ask: Callable[[X11Screen], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = env.reset()
    screen = env.scene.screen  # type: ignore[union-attr]
    holder = Display(screen.display)
    holder.grab_server()
    holder.sync()
    monkeypatch.setattr(x11, "TIMEOUT", 1.0)
    with pytest.raises(WorldBroken, match="the X server is gone"):
        ask(screen)
    assert step_with_calls(env, state, {"action": "wait", "time": 0})["dropped"]
    monkeypatch.undo()
    assert not env.reset()["dropped"]


def test_a_server_that_does_not_come_up_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Xvfb").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "Xvfb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(x11, "TIMEOUT", 1.0)
    with pytest.raises(WorldBroken, match="Xvfb does not start"):
        X11Screen(["true"], (320, 240), tmp_path)


PRIER = """
import os, socket, tkinter
from pathlib import Path

def tried(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__

Path("seen.txt").write_text(repr([
    tried(lambda: len(os.listdir(HOME))),
    tried(lambda: Path("/usr/mine").write_text("x")),
    tried(lambda: socket.create_connection(("127.0.0.1", PORT), 5)),
    os.environ.get("CLAWRL_SECRET"),
]))
os.symlink(HOME + "/secret", "link.txt")
tkinter.Tk().mainloop()
"""


def test_a_program_sees_nothing_but_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setenv("CLAWRL_SECRET", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = PRIER.replace("HOME", repr(str(tmp_path))).replace("PORT", str(server.getsockname()[1]))
        errors = "['FileNotFoundError', 'OSError', 'ConnectionRefusedError', None]"
        task = X11Task("pry", "Look.", ("python", "-c", program), {"seen.txt": errors, "link.txt": "secret"})
        with closing(GUIEnv([task])) as env:
            state = step_with_calls(env, env.reset(), {"action": "wait", "time": 0})
            assert state["progress"].item() == 0.5, "what it saw is right, and a link is not followed"


def test_specs_and_nothing_left(env: GUIEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests run beside this one
    before = living_children()
    check_env_specs(env, break_when_any_done="both", seed=0)
    env.reset()
    assert list(tmp_path.glob("clawrl-x11-*"))
    env.close()
    assert not [child for child in living_children() if child not in before]
    assert not list(tmp_path.glob("clawrl-x11-*"))
