"""Pictures on their way: from the screen through the gateway into a vision-language model, and its click back."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gateway_rig import running
from PIL import Image
from real_engine import RealEngine
from tiny_vl import PAD, POINTS, TinyVL

from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.gui.env import KEPT_IMAGES, GUIEnv
from clawrl_trl.envs.gui.tasks import WebTask
from clawrl_trl.pictures import read_contents
from clawrl_trl.tiny import MODEL_PATH

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><body style='margin: 0; height: 240px'><script>const clicks = [];
addEventListener("click", one => {
  clicks.push([one.clientX, one.clientY]);
  document.body.insertAdjacentHTML("beforeend", `<div style='background: rgb(${clicks.length * 40}, 90, 200);
    position: absolute; width: 40px; height: 40px; left: ${one.clientX}px; top: ${one.clientY}px'></div>`);
});</script>"""


def env_of(folder: Path) -> GUIEnv:
    (folder / "page.html").write_text(PAGE)
    return GUIEnv([WebTask("one", folder, "page.html", instruction="Click.", checks=("false",))], images=True)


def pictures(conversation: str) -> list[Any]:
    messages = [message for message in json.loads(conversation) if isinstance(message["content"], list)]
    return [part for message in messages for part in message["content"] if part["type"] == "image_url"]


def test_a_model_sees_the_screen_and_its_clicks_come_back(tmp_path: Path) -> None:
    engine, env = TinyVL(), env_of(tmp_path)
    with running(tmp_path / "run", engine=engine, max_model_len=8192) as rig:
        policy = GatewayPolicy(rig.url, stream_share=0.0)
        state, screens, conversations = env.reset(), [], []
        for step in range(KEPT_IMAGES + 2):
            screens.append(state["screenshot"].permute(1, 2, 0).numpy())
            conversations.append(json.loads(state["conversation"]))
            assert len(pictures(state["conversation"])) == min(step + 1, KEPT_IMAGES)
            state = env.step(policy(state))["next"]
            assert env.scene is not None and not state["done"] and state["faults"].item() == 0
            clicks = env.scene.screen.evaluate("clicks")  # type: ignore[attr-defined]
            assert len(clicks) == step + 1
            x, y = engine.seen[-1].point
            assert clicks[-1] == pytest.approx([x / 999 * 320, y / 999 * 240], abs=1.5)
        policy.close()
        turns = rig.turns()
    env.close()
    assert len({screen.tobytes() for screen in screens}) == len(screens), "each click shows"
    for step, observed in enumerate(engine.seen):
        expected = screens[max(0, step + 1 - KEPT_IMAGES) : step + 1]
        assert len(observed.images) == len(expected)
        assert all(np.array_equal(*pair) for pair in zip(observed.images, expected, strict=True))
        prepared = engine.prepare(images=[Image.fromarray(picture) for picture in expected], return_tensors="pt")
        assert torch.equal(observed.pixel_values, prepared["pixel_values"])
        patches = int(prepared["image_grid_thw"].prod(-1).sum())
        assert observed.prompt_ids.count(engine.tokenizer.convert_tokens_to_ids(PAD)) == patches // 4
    # The gateway passes the parts on as they are, and keeps them so.
    assert [request["messages"] for request in engine.requests] == conversations == [turn.messages for turn in turns]
    for turn, observed in zip(turns, engine.seen, strict=True):
        assert turn.kind == "main" and turn.prompt_ids is not None and turn.completion_ids is not None
        assert turn.prompt_ids.tolist() == observed.prompt_ids
        assert json.dumps(list(observed.point)) in engine.tokenizer.decode(turn.completion_ids)
        assert turn.trainable
        stored_arrays = [np.array(Image.open(io.BytesIO(content))) for content in read_contents(turn.messages)]
        assert all(np.array_equal(*pair) for pair in zip(stored_arrays, observed.images, strict=True))


def test_what_the_model_says_depends_on_what_it_sees() -> None:
    engine = TinyVL()
    prompt = engine.tokenizer.encode("".join(("<|vision_start|>", PAD * 4, "<|vision_end|>")))
    logprobs = []
    for colour in ("black", "white"):
        prepared = engine.prepare(images=[Image.new("RGB", (56, 56), colour)], return_tensors="pt")
        logprobs.append(engine._logprobs(prompt, engine.tokenizer.encode("yes"), prepared))
    assert logprobs[0] != logprobs[1] and len(POINTS) > 1


def test_an_engine_that_can_not_see_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = env_of(tmp_path)
    with (
        RealEngine(tmp_path / "engine", MODEL_PATH) as engine,
        running(tmp_path / "run", engine_url=engine.url) as rig,
        rig.client() as http,
    ):
        policy = GatewayPolicy(rig.url, stream_share=0.0)
        state = env.reset()
        refused = http.post("/v1/chat/completions", json={"messages": json.loads(state["conversation"])})
        assert refused.status_code == 400 and "one that sees needs vLLM" in refused.json()["error"]["message"]
        while not state["done"]:
            state = env.step(policy(state))["next"]
        policy.close()
        assert rig.turns() == []
    env.close()
    assert state["dropped"] and torch.isnan(state["reward"]).all()
    assert "Content of type 'image_url' is not supported" in caplog.text
