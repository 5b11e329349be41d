"""The GUI environment on a real Chromium: what is observed, what each action does, and what goes wrong."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from child_processes import living_children
from PIL import Image
from tensordict import TensorDict
from torchrl.envs import AsyncEnvPool
from torchrl.envs.utils import check_env_specs

from clawrl_trl.envs.gui.browser_pool import BACKENDS
from clawrl_trl.envs.gui.computer_use import to_coordinate
from clawrl_trl.envs.gui.env import KEPT_IMAGES, GUIEnv
from clawrl_trl.envs.gui.oracle import format_calls, step_with_calls
from clawrl_trl.envs.gui.tasks import WebTask, read_tasks
from clawrl_trl.errors import UserError

pytestmark = pytest.mark.browser

SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "gui"
ALL = """<title>All</title><style>body { margin: 0 } #far { margin-top: 900px; margin-left: 900px }</style>
<button id=pad>Pad</button> <label>Name <input id=name></label>
<select id=size aria-label=Size><option>small<option>large</select>
<p id=text>some words here</p><button id=far>Far</button>
<script>
const seen = [];
for (const kind of ["click", "dblclick", "auxclick", "contextmenu", "mousedown", "mouseup", "keydown"]) {
  addEventListener(kind, event => seen.push([kind, event.target.id, event.key ?? event.detail]));
}
</script>"""


@pytest.fixture(params=BACKENDS)
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., GUIEnv]]:
    """Makes an environment with one task on a page of this content; what holds for one back end holds for both."""
    envs: list[GUIEnv] = []

    def build(content: str = ALL, *, env: dict[str, Any] | None = None, **task: Any) -> GUIEnv:
        (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{content}")
        web_task = WebTask("one", tmp_path, "page.html", **{"instruction": "Go.", "checks": ("false",), **task})
        envs.append(GUIEnv([web_task], **{"backend": request.param, **(env or {})}))
        return envs[-1]

    yield build
    for gui_env in envs:
        gui_env.close()


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    """Holds the browser that all environments of this module share."""
    env = GUIEnv(read_tasks(SHIPPED / "folders"))
    yield
    env.close()


def take_events(env: GUIEnv) -> Any:
    return env.scene.screen.evaluate("seen.splice(0)")  # type: ignore[union-attr]


def find_ref(env: GUIEnv, label: str) -> int:
    return next(element.ref for element in env.elements if element.label == label)


def test_specs(make: Callable[..., GUIEnv]) -> None:
    check_env_specs(make(), break_when_any_done="both", seed=0)


def test_observations_show_the_page(make: Callable[..., GUIEnv]) -> None:
    env = make("<h1>Fruit</h1><button disabled>Eat</button><input type=checkbox checked aria-label=Ripe>")
    state = env.reset()
    assert state["screenshot"].shape == (3, 240, 320) and state["screenshot"].dtype == torch.uint8
    assert state["screenshot"].float().mean() > 200 and state["screenshot"].float().std() > 5
    assert state["outline"].splitlines() == [
        'heading "Fruit" [1]',
        'button "Eat" [2] (disabled)',
        'checkbox "Ripe" [3] (checked)',
    ]
    assert state["message"] == f"Go.\n{state['outline']}"
    assert json.loads(state["tools"])[0]["function"]["name"] == "computer_use"


def test_every_click(make: Callable[..., GUIEnv]) -> None:
    env = make()
    state = env.reset()
    pad = find_ref(env, 'button "Pad"')
    for action, event in {
        "left_click": ["click", "pad", 1],
        "double_click": ["dblclick", "pad", 2],
        "triple_click": ["click", "pad", 3],
        "middle_click": ["auxclick", "pad", 1],
        "right_click": ["contextmenu", "pad", 0],
    }.items():
        state = step_with_calls(env, state, {"action": action, "ref": pad})
        assert event in take_events(env), action
    x, y = env.scene.screen.locate(pad)  # type: ignore[union-attr]
    state = step_with_calls(env, state, {"action": "left_click", "coordinate": to_coordinate((x, y), (320, 240))})
    assert ["click", "pad", 1] in take_events(env)


def test_typing_keys_and_choosing(make: Callable[..., GUIEnv]) -> None:
    env = make(
        checks=("document.getElementById('name').value === 'Zoë'", "document.getElementById('size').value[0] === 'l'")
    )
    state = env.reset()
    state = step_with_calls(env, state, {"action": "type", "ref": find_ref(env, 'textbox "Name"'), "text": "Tom"})
    assert 'textbox "Name" [2] = "Tom" (focused)' in state["outline"] and state["progress"].item() == 0.0
    state = step_with_calls(env, state, {"action": "key", "keys": ["ctrl", "a"]}, {"action": "type", "text": "Zoë"})
    assert state["progress"].item() == 0.5
    state = step_with_calls(env, state, {"action": "left_click", "ref": find_ref(env, 'option "large"')})
    assert state["progress"].item() == 1.0 and 'combobox "Size" [3] = "large"' in state["outline"]
    state = step_with_calls(env, state, {"action": "terminate", "status": "failure"})
    assert state["terminated"] and state["reward"].item() == 1.0


def test_moving_dragging_and_scrolling(make: Callable[..., GUIEnv]) -> None:
    env = make()
    state = step_with_calls(env, env.reset(), {"action": "mouse_move", "ref": 1})
    state = step_with_calls(env, state, {"action": "left_click_drag", "ref": find_ref(env, 'text "some words here"')})
    assert [event[:2] for event in take_events(env)][:2] == [["mousedown", "pad"], ["mouseup", "text"]]
    where = lambda: env.scene.screen.evaluate("[scrollX, scrollY]")  # type: ignore[union-attr]  # noqa: E731
    state = step_with_calls(env, state, {"action": "scroll", "pixels": -200})
    assert where() == [0, 200] and state["difference"].item() > 0
    state = step_with_calls(env, state, {"action": "hscroll", "pixels": 150})
    state = step_with_calls(env, state, {"action": "scroll", "pixels": 50})
    assert where() == [150, 150]
    state = step_with_calls(env, state, {"action": "left_click", "ref": find_ref(env, 'button "Far"')})
    assert ["click", "far", 1] in take_events(env)


def test_difference_tells_what_changed(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<body style='margin:0'><button style='width:160px;height:240px;background:#000' onclick='this.remove()'>x"
    )
    state = step_with_calls(env, env.reset(), {"action": "wait", "time": 0})
    assert state["difference"].item() == 0.0
    state = step_with_calls(env, state, {"action": "left_click", "ref": 1})
    assert 0.2 < state["difference"].item() <= 0.5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "left_click", "ref": 99}, "Error: there is no element [99]"),
        ({"action": "fly"}, "Error: action must be one of"),
        ({"action": "type"}, "Error: type needs a text"),
    ],
)
def test_mistakes_are_told_and_change_nothing(make: Callable[..., GUIEnv], arguments: Any, told: str) -> None:
    env = make()
    state = step_with_calls(env, env.reset(), arguments)
    assert told in state["message"] and not state["done"] and take_events(env) == []


def test_a_key_that_is_not_there_leaves_none_down(make: Callable[..., GUIEnv]) -> None:
    """Playwright knows the keys of one keyboard only, Selenium presses any character."""
    markup = "<button>Pad</button><script>onclick = event => document.title = `ctrl ${event.ctrlKey}`</script>"
    env = make(markup, checks=("document.title === 'ctrl false'",))
    state = step_with_calls(env, env.reset(), {"action": "key", "keys": ["ctrl", "\N{GRINNING FACE}"]})
    assert not state["done"] and state["message"].startswith(("Error: this keyboard can't press Control +", "Done"))
    state = step_with_calls(env, state, {"action": "left_click", "ref": find_ref(env, 'button "Pad"')})
    assert state["progress"].item() == 1.0


def test_words_and_unknown_tools_are_answered(make: Callable[..., GUIEnv]) -> None:
    env = make()
    state = env.step(env.reset().set("action", "Let me think."))["next"]
    assert "Call computer_use" in state["message"] and "[1]" in state["message"] and not state["done"]
    state = env.step(state.set("action", '<tool_call>{"name": "shell", "arguments": {}}</tool_call>'))["next"]
    assert "there is no tool 'shell'" in state["message"]


def test_calls_after_the_end_are_not_carried_out(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<button onclick='window.n = (window.n || 0) + 1'>Go</button>", checks=("n === 1",), ends="window.n > 0"
    )
    state = step_with_calls(env, env.reset(), {"action": "left_click", "ref": 1}, {"action": "left_click", "ref": 1})
    assert state["terminated"] and state["reward"].item() == 1.0
    assert [message["content"] for message in json.loads(state["conversation"])][-1].startswith("Not done")


def test_an_element_keeps_its_number_while_the_page_changes(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<button onclick='this.before(Object.assign(document.createElement(`button`), {textContent: `new`}))'>a"
    )
    state = step_with_calls(env, env.reset(), {"action": "left_click", "ref": 1})
    assert state["outline"].splitlines() == ['button "new" [2]', 'button "a" [1] (focused)']


def test_pages_in_frames_and_new_tabs_are_read_and_clicked(make: Callable[..., GUIEnv], tmp_path: Path) -> None:
    (tmp_path / "inner.html").write_text("<button onclick='top.clicked = 1'>Inner</button>")
    (tmp_path / "other.html").write_text("<button>Other</button>")
    env = make(
        "<a href=other.html target=_blank>Tab</a><iframe src=inner.html></iframe>", ready="window[0].document.body"
    )
    state = env.reset()
    state = step_with_calls(env, state, {"action": "left_click", "ref": find_ref(env, 'button "Inner"')})
    assert env.scene.screen.evaluate("window.clicked") == 1  # type: ignore[union-attr]
    state = step_with_calls(env, state, {"action": "left_click", "ref": find_ref(env, 'link "Tab"')})
    assert 'button "Other"' in state["outline"]
    state = env.reset()
    assert 'link "Tab"' in state["outline"] and not state["dropped"]


def test_a_reset_leaves_nothing_behind(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<script>document.write(`<p>${localStorage.x ?? 'fresh'} ${document.cookie || 'none'} ${TASK.a}</p>`);"
        "localStorage.x = 'stale'; document.cookie = 'c=1'</script>",
        data={"a": "A"},
    )
    for _ in range(3):
        assert 'text "fresh none A"' in env.reset()["outline"]


def test_dialogs_do_not_hold_the_page(make: Callable[..., GUIEnv]) -> None:
    env = make("<button onclick='alert(1); this.textContent = `after`'>Alert</button>")
    assert 'button "after"' in step_with_calls(env, env.reset(), {"action": "left_click", "ref": 1})["outline"]


def test_the_network_is_closed(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<p id=p>wait</p>",
        ready="window.answer !== undefined",
        setup="for (const url of ['http://example.com', 'http://1.1.1.1']) "
        "fetch(url, {mode: 'no-cors'}).then(() => window.answer = 'open', () => window.answer ??= 'closed')",
        checks=("window.answer === 'closed'",),
    )
    assert env.reset()["progress"].item() == 1.0


def test_pictures_reach_the_conversation_and_three_stay(make: Callable[..., GUIEnv]) -> None:
    env = make(env={"images": True, "outline": False})
    state = env.reset()
    for _ in range(4):
        state = step_with_calls(env, state, {"action": "wait", "time": 0})
    parts = [
        part
        for message in json.loads(state["conversation"])
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    pictures = [part for part in parts if part["type"] == "image_url"]
    assert len(pictures) == KEPT_IMAGES
    assert sum(part.get("text") == "(an earlier screenshot)" for part in parts) == 2
    raw = base64.b64decode(pictures[-1]["image_url"]["url"].removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(raw)) as picture:
        assert picture.size == (320, 240)


def test_a_broken_page_is_dropped_and_the_next_episode_is_whole(make: Callable[..., GUIEnv]) -> None:
    env = make()
    state = env.reset()
    renderers = living_children("--type=renderer")
    assert renderers
    for renderer in renderers:
        renderer.kill()
    state = step_with_calls(env, state, {"action": "left_click", "ref": 1})
    assert state["dropped"] and state["terminated"] and torch.isnan(state["reward"]).all()
    assert not env.reset()["dropped"]


def test_a_page_is_kept_but_not_after_a_dropped_episode(make: Callable[..., GUIEnv]) -> None:
    env = make()
    state = env.reset()
    page = env.scene.screen  # type: ignore[union-attr]
    step_with_calls(env, state, {"action": "terminate"})
    state = env.reset()
    assert env.scene.screen is page  # type: ignore[union-attr]
    while not state["dropped"]:
        state = env.step(state.set("action", ""))["next"]
    assert not env.reset()["dropped"] and env.scene.screen is not page  # type: ignore[union-attr]


def test_a_page_that_does_not_load_is_dropped(make: Callable[..., GUIEnv], tmp_path: Path) -> None:
    env = make(setup="throw new Error('no')")
    state = env.reset()
    assert state["dropped"] and "does not start" in state["reason"]
    state = step_with_calls(env, state, {"action": "wait", "time": 0})
    assert state["terminated"] and torch.isnan(state["reward"]).all()


def test_in_a_pool() -> None:
    tasks = read_tasks(SHIPPED / "train.jsonl", difficulty=1)
    envs = [GUIEnv(tasks, first_task=place) for place in range(3)]
    pool = AsyncEnvPool([lambda env=env: env for env in envs], backend="threading", stack="lazy")
    try:
        state = pool.reset()
        for _ in range(2):
            state = pool.step(state.set("action", [format_calls({"action": "wait", "time": 0})] * 3))["next"]
        assert [len(set(state[key])) for key in ("task_id", "session_id")] == [3, 3]
        assert not state["dropped"].any() and (state["step"] == 2).all()
    finally:
        pool.close()
        for env in envs:  # a pool on threads leaves that to its owner
            env.close()


def test_screens_of_one_size_and_known_actions(tmp_path: Path) -> None:
    tasks = [WebTask(name, tmp_path, "p", size=(width, 9)) for name, width in (("a", 5), ("b", 6))]
    with pytest.raises(ValueError, match="2 sizes"):
        GUIEnv(tasks)
    with pytest.raises(ValueError, match="actions must be some of"):
        GUIEnv(tasks[:1], actions=("fly",))
    with pytest.raises(UserError, match="back end 'telepathy'"):
        GUIEnv(tasks[:1], backend="telepathy")  # type: ignore[arg-type]


def test_the_signal_of_an_action_is_the_change_of_progress(make: Callable[..., GUIEnv]) -> None:
    checks = ("document.getElementById('name').value === 'Tom'", "scrollY > 0", "seen.length > 99", "scrollY < 0")
    env = make(checks=checks)
    state, signals = env.reset(), []
    for arguments in (
        {"action": "type", "ref": find_ref(env, 'textbox "Name"'), "text": "Tom"},
        {"action": "wait", "time": 0},
        {"action": "scroll", "pixels": -200},
        {"action": "key", "keys": ["x"]},
    ):
        state = step_with_calls(env, state, arguments)
        signals.append(state["signal"].item())
    assert signals == [0.25, 0.0, 0.25, -0.25]


FORGERY = """<label>Name <input id=name></label><p id=text>x</p><button>Go</button><script>
let state = {chosen: null, marked: new Set(["b", "a"]), odd: [1, undefined, NaN]}, over = false;
const forged = () => state.target;
JSON.stringify = () => '"red"';
Array.prototype.map = function () { return [true, true, true, true]; };
Array.prototype.sort = Array.prototype.filter = function () { return this; };
Array.prototype.every = Array.prototype.some = () => true;
Object.defineProperty(Object.prototype, "value", {get: () => "Tom"});
Object.prototype.toJSON = () => true;
Boolean.prototype.valueOf = () => true;
document.querySelector = document.getElementById = () => ({value: "Tom", textContent: "done"});
Document.prototype.getElementById = () => ({value: "Tom"});
Object.defineProperty(HTMLInputElement.prototype, "value", {get: () => "Tom"});
Object.defineProperty(window, "progress", {get: () => 1});
Promise.prototype.then = function (done) { done(true); };
</script>"""


@pytest.mark.parametrize(
    "check",
    [
        "document.getElementById('name').value === 'Tom'",
        "document.querySelector('#text').textContent === 'done'",
        "window.document.getElementById('name').value === 'Tom'",
        "JSON.stringify(state.chosen) === '\"red\"'",
        "[...state.marked].every(one => one === 'c')",
        "over",
        "window.over === true",
        "state.nothing",
        "Promise.resolve(false).then(one => one)",
    ],
)
def test_a_page_that_overrides_everything_makes_no_progress(make: Callable[..., GUIEnv], check: str) -> None:
    env = make(FORGERY, checks=(check,))
    state = env.reset()
    assert not state["dropped"] and state["progress"].item() == 0.0
    state = step_with_calls(
        env, state, {"action": "left_click", "ref": find_ref(env, 'button "Go"')}, {"action": "terminate"}
    )
    assert state["reward"].item() == -1.0


def test_what_is_true_of_such_a_page_counts(make: Callable[..., GUIEnv]) -> None:
    checks = (
        "document.getElementById('name').value === ''",
        'JSON.stringify([...state.marked].sort()) === \'["a","b"]\'',
        "state.chosen === null && !over && state.odd[1] === undefined && Number.isNaN(state.odd[2])",
        "window.state.marked.has('a') && window.innerWidth === 320 && typeof window.getComputedStyle === 'function'",
    )
    assert make(FORGERY, checks=checks).reset()["progress"].item() == 1.0


def test_a_check_may_call_functions_of_the_page(make: Callable[..., GUIEnv]) -> None:
    env = make(
        "<script>const game = {won: () => true}; window.app = {n: 2}</script>", checks=("game.won()", "app.n === 2")
    )
    assert env.reset()["progress"].item() == 1.0


GREEDY = {
    "heap": "kept.push(Array.from({length: 1 << 20}, (_, i) => ({i})))",
    "buffers": "kept.push(new Uint8Array(32 << 20).fill(1))",
}


@pytest.mark.parametrize("way", GREEDY)
def test_a_page_that_takes_all_memory_is_dropped_with_the_reason(make: Callable[..., GUIEnv], way: str) -> None:
    grow = f"const kept = []; document.getElementById('go').onclick = () => setInterval(() => {{ {GREEDY[way]} }}, 0)"
    env = make(f"<button id=go>Go</button><script>{grow}</script>")
    state = env.reset()
    for _ in range(30):
        state = step_with_calls(env, state, {"action": "left_click", "ref": 1}, {"action": "wait", "time": 1})
        if state["done"]:
            break
    assert state["dropped"] and "memory" in state["reason"]
    assert not env.reset()["dropped"]


def test_the_first_step_that_left_the_oracle_has_the_element_for_a_hint() -> None:
    env = GUIEnv(read_tasks(SHIPPED / "train.jsonl", difficulty=1))
    state = env.reset()
    task = env.task
    state = step_with_calls(env, state, {"action": "terminate", "status": "failure"})
    (words,) = json.loads(state["hints"])["0"]
    label = task.oracle[0]["element"]
    line = next(line for line in state["outline"].splitlines() if label in line)
    assert words.splitlines() == [task.instruction, line.strip()] * 2
    state = env.reset(TensorDict({"next_task": torch.tensor([0])}, batch_size=()))
    ref = next(element.ref for element in env.elements if element.label == label)
    state = step_with_calls(env, state, {"action": "left_click", "ref": ref})
    assert state["outcome"] == 1.0 and json.loads(state["hints"]) == {}
    env.close()
