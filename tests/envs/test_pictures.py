"""What an episode on a screen looked like: captured in its requests or kept beside them, and shown to people."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gateway_rig import Rig, ScriptedEngine, running, says
from PIL import Image
from real_engine import RealEngine

from clawrl_trl import pictures
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.screen import to_tensor
from clawrl_trl.envs.gui.tasks import WebTask
from clawrl_trl.envs.rollout.episode import Episode
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.practice_worker import play_episodes
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH

TASKS = Path(__file__).parents[2] / "examples" / "tasks" / "gui"
PAGE = """<!doctype html><body style='margin: 0'><button style='width: 200px; height: 100px'
onclick='document.body.style.background = ["red", "green", "blue"][window.n = (window.n ?? -1) + 1]'>Go</button>"""


def clawrl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def call(**arguments: Any) -> Any:
    """A reply with one call, as a model writes it whose server reads no calls."""
    text = json.dumps({"name": "computer_use", "arguments": arguments})
    return says("<tool_call>", text, "</tool_call>")


class WatchedEnv(GUIEnv):
    """Writes down what it observed."""

    def observe_more(self) -> dict[str, Any]:
        self.seen = [*getattr(self, "seen", []), self.png] if self.steps_taken else [self.png]
        return super().observe_more()


def play(folder: Path, rig: Rig, *, images: bool, keep: bool = False) -> tuple[Episode, list[bytes]]:
    """An episode of three actions; returns it and the screenshots, as the environment made them."""
    (folder / "page.html").write_text(PAGE)
    envs: list[WatchedEnv] = []

    def make() -> WatchedEnv:
        task = WebTask("one/two", folder, "page.html", instruction="Paint it blue.", checks=("n === 2",))
        envs.append(WatchedEnv([task], images=images))
        return envs[-1]

    policy = GatewayPolicy(rig.url, stream_share=0.0)
    screenshots = Screenshots(rig.run.path) if keep else None
    (group,) = Rollout(make, policy, num_generations=1, parallel_envs=1, screenshots=screenshots).play([0])
    policy.close()
    return group.episodes[0], envs[0].seen


CLICKS = [call(action="left_click", ref=1), call(action="left_click", ref=1), call(action="terminate")]


@pytest.mark.browser
def test_pictures_in_the_requests_are_shown_and_written(tmp_path: Path) -> None:
    with running(tmp_path / "run", engine=ScriptedEngine(list(CLICKS))) as rig:
        episode, screens = play(tmp_path, rig, images=True)
        first = rig.turns()[0]
    inspect = ("inspect", episode.session_id, "--run", tmp_path / "run")
    result = clawrl(*inspect)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("picture:")] == [
        f"picture: image/png 320x240, {len(png):,} bytes" for png in screens[:3]
    ]
    assert "[image/png]" in result.stdout and 'button "Go" [1]' in result.stdout and "base64" not in result.stdout
    assert ", outcome -1\n" in result.stdout

    report = json.loads(clawrl(*inspect, "--json", "--pictures", tmp_path / "out").stdout)
    assert [turn["pictures"][0]["step"] for turn in report["turns"]] == [0, 1, 2]
    names = ["000-turn-1.png", "001-turn-2.png", "002-turn-3.png", "filmstrip.png"]
    assert [Path(file).name for file in report["files"]] == names == list_names(tmp_path / "out")
    assert [(tmp_path / "out" / name).read_bytes() for name in names[:3]] == screens[:3]
    assert len(set(screens[:3])) == 3
    with Image.open(tmp_path / "out" / "filmstrip.png") as strip:
        assert strip.width > 3 * 320
    again = clawrl("inspect", first.session_id, "--run", tmp_path / "run", "--pictures", tmp_path / "same")
    assert again.returncode == 0 and list_names(tmp_path / "same") == names


@pytest.mark.browser
def test_screenshots_that_were_kept_are_found_and_forgotten(tmp_path: Path) -> None:
    with running(tmp_path / "run", engine=ScriptedEngine(list(CLICKS))) as rig:
        episode, screens = play(tmp_path, rig, images=False, keep=True)
    assert "one/two" in episode.session_id
    run = ("--run", tmp_path / "run")
    report = json.loads(clawrl("inspect", episode.session_id, *run, "--json", "--pictures", tmp_path / "out").stdout)
    assert [turn["pictures"][0]["step"] for turn in report["turns"]] == [0, 1, 2]
    names = [Path(file).name for file in report["files"]]
    assert names == ["000-turn-1.png", "001-turn-2.png", "002-turn-3.png", "003-end.png", "filmstrip.png"]
    for name, png in zip(names, screens, strict=False):
        assert torch.equal(to_tensor((tmp_path / "out" / name).read_bytes()), to_tensor(png))
    folder = RunFolder(tmp_path / "run").find_screenshots(episode.session_id)
    assert folder.parent == tmp_path / "run" / "screenshots" and len(list(folder.iterdir())) == 4
    assert clawrl("forget", episode.session_id, *run).returncode == 0
    assert not folder.exists()


@pytest.mark.browser
@pytest.mark.xdist_group("live")
def test_practice_of_the_bundled_model_keeps_its_screenshots(tmp_path: Path) -> None:
    engine = RealEngine(tmp_path / "engine", MODEL_PATH)
    ServeSettings(run=str(tmp_path / "engine")).save()
    with engine, running(tmp_path / "run", engine_url=engine.url) as rig:
        practice = PracticeOptions(
            env="gui",
            tasks=str(TASKS),
            difficulty=1,
            episodes=2,
            group_size=2,
            parallel_envs=2,
            env_max_steps=2,
            max_tokens=64,
            prm_coef=0.5,
            keep_screenshots=True,
        )
        policy = GatewayPolicy(rig.url, stream_share=0.0)
        (row,) = play_episodes(tmp_path / "run", practice, policy)
        policy.close()
        turns = rig.turns()
    assert row["settled"]["dropped_episodes"] == 0
    for episode in row["episodes"]:
        out = tmp_path / episode["session_id"]
        result = clawrl("inspect", episode["session_id"], "--run", tmp_path / "run", "--pictures", out)
        assert result.returncode == 0, result.stderr
        assert f"picture: image/png {320}x{240}" in result.stdout
        assert len(list(out.glob("0*.png"))) == episode["steps"] + 1 and (out / "filmstrip.png").exists()
        assert len(episode["signals"]) == episode["steps"]
    assert {name for entry in row["episodes"] for name in entry["signals"]} <= {turn.id for turn in turns}


def make_observation(session: str, step: int = 0) -> dict[str, Any]:
    picture = torch.zeros((3, 4, 5), dtype=torch.uint8)
    return {"session_id": session, "step": torch.tensor([step]), "screenshot": picture}


def test_only_the_last_episodes_are_kept(tmp_path: Path) -> None:
    screenshots = Screenshots(tmp_path, episodes=3)
    for number in range(5):
        for step in range(2):
            screenshots.keep(make_observation(f"s{number}", step))
        folder = RunFolder(tmp_path).find_screenshots(f"s{number}")
        os.utime(folder, (number, number))
    assert list_names(tmp_path / "screenshots") == ["s2", "s3", "s4"]
    assert list_names(tmp_path / "screenshots" / "s4") == ["0.png", "1.png"]
    screenshots.keep({"session_id": "blind", "step": torch.tensor([0])})
    assert not RunFolder(tmp_path).find_screenshots("blind").exists()


@pytest.mark.parametrize("session", ["..", "../..", ".", "a/../../b", ""])
def test_a_session_s_name_leads_nowhere_else(tmp_path: Path, session: str) -> None:
    folder = RunFolder(tmp_path).find_screenshots(session)
    assert folder.resolve().parent == tmp_path / "screenshots"


def make_jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(file, "JPEG")
    return file.getvalue()


def test_pictures_of_other_kinds() -> None:
    urls = [f"data:image/jpeg;base64,{base64.b64encode(make_jpeg()).decode()}", "https://example.com/cat.png"]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (*urls, "data:image/png;base64,%%%%")]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, parts[1]]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": parts},
    ]
    images = pictures.list_turn_pictures(messages, 2)
    assert [(picture.step, picture.turn, picture.place, picture.kind) for picture in images] == [
        (1, 2, 0, "image/jpeg"),
        (1, 2, 1, "image at an address"),
        (1, 2, 2, "image/png"),
    ]
    assert str(images[1]) == "image at an address, not in the request"
    assert [picture.name for picture in images] == ["001-turn-2.png", "001-turn-2-2.png", "001-turn-2-3.png"]
    with Image.open(io.BytesIO(images[0].png())) as image:
        assert (image.format, image.size) == ("PNG", (8, 6))
    with pytest.raises(UserError, match="can't be read as a picture"):
        pictures.Picture(0, 1, "image/webp", b"nothing").png()


def test_a_session_without_pictures_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "run") as rig, rig.client(headers={"X-Session-Id": "plain"}) as http:
        http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "[/b] hello"}]})
    result = clawrl("inspect", "plain", "--run", tmp_path / "run", "--pictures", tmp_path / "out")
    assert result.returncode == 2 and "--keep_screenshots" in result.stderr and not (tmp_path / "out").exists()
    assert "[/b] hello" in clawrl("inspect", "plain", "--run", tmp_path / "run").stdout
