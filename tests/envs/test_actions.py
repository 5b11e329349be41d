"""What the tiny model's recipe says of the environments, against the environments."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from clawrl_trl.envs import GUIEnv, SWEEnv, TerminalEnv, ToolCallEnv, read_swe_tasks, read_tool_tasks
from clawrl_trl.envs.base.agent import AgentEnv
from clawrl_trl.envs.gui.tasks import read_tasks
from recipes.tasks.terminal import make_folder
from recipes.tiny.actions import GUI_ACTIONS, RIGHT, SCENES, Message, Scene
from recipes.tiny.dialogues import make_acting

pytestmark = [pytest.mark.sandbox, pytest.mark.browser]
SHIPPED = Path(__file__).parents[2] / "examples" / "tasks"
COUNT = 12


def make_environment(name: str, scenes: list[Scene], folder: Path) -> AgentEnv[Any]:
    """The environment over the scenes' tasks."""
    if name == "terminal":
        return TerminalEnv([make_folder(str(place), "easy", scene.task) for place, scene in enumerate(scenes)])
    path = folder / "train.jsonl"
    key = "instance_id" if name == "swe" else "id"
    rows = [{key: str(place), "difficulty": 1, **scene.task} for place, scene in enumerate(scenes)]
    if name == "gui":
        rows = [row | {"ends": "over"} for row in rows]
        (folder / "pages").symlink_to(SHIPPED / "gui" / "pages")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if name == "gui":
        return GUIEnv(read_tasks(path), actions=GUI_ACTIONS)
    if name == "swe":
        return SWEEnv(read_swe_tasks(path))
    return ToolCallEnv(read_tool_tasks(path), tools=SHIPPED / "toolcall" / "tools.json")


def make_action(message: Message) -> str:
    calls = [
        {**call, "id": "c", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return json.dumps(message | ({"tool_calls": calls} if calls else {}))


def list_texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.parametrize("name", sorted(SCENES))
def test_scenes_are_those_of_the_environment(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    scenes = [SCENES[name](rng) for _ in range(COUNT)]
    env = make_environment(name, scenes, tmp_path)
    try:
        for way in ("right", "slip"):
            env.next_task = 0
            for scene in scenes:
                state = env.reset()
                assert list_texts(json.loads(state["conversation"])) == list_texts(scene.messages)
                assert json.loads(state["tools"]) == scene.tools
                expected: list[Message] = getattr(scene, way)
                for message in expected:
                    if message["role"] == "assistant":
                        assert not state["done"], scene
                        state = env.step(state.set("action", make_action(message)))["next"]
                assert state["done"] and not state["dropped"], scene
                assert (float(state["outcome"]) == 1.0) is (way == "right"), scene
                observed = json.loads(state["conversation"])[len(scene.messages) :]
                assert list_texts(observed)[: len(expected)] == list_texts(expected)
    finally:
        env.close()


def test_the_right_action_is_learnt_at_times() -> None:
    right = 0
    for seed in range(3000):
        learnt, rng = make_acting(random.Random(seed), RIGHT), random.Random(seed)
        scene = SCENES[rng.choice(sorted(SCENES))](rng)
        first = [*scene.messages, *scene.right]
        right += learnt.messages[: len(first)] == first
    assert right / 3000 == pytest.approx(RIGHT, abs=0.03)
