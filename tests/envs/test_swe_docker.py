"""Software tasks in Docker images, in the manner of SWE-bench's: the repository at /testbed, future and all."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawrl_trl.envs import SWEEnv, SweTask
from clawrl_trl.envs.swe.tasks import SENTINEL, format_action
from recipes.tasks.swe import make_diff

FILES = {"calc.py": "def add(a, b):\n    return a - b\n"}
FIXED = {"calc.py": "def add(a, b):\n    return a + b\n"}
HIDDEN = {"test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"}
DOCKERFILE = """FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && pip install pytest
COPY calc.py /testbed/calc.py
RUN cd /testbed && git init && git add . && git -c user.name=a -c user.email=a@b commit -m base \\
 && sed -i s/-/+/ calc.py && git -c user.name=a -c user.email=a@b commit -am fix && git checkout -q HEAD~1
"""


def _engine() -> bool:
    return (
        shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode
    )


pytestmark = [pytest.mark.docker, pytest.mark.skipif(not _engine(), reason="needs a Docker engine")]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("image")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "calc.py").write_text(FILES["calc.py"])
    subprocess.run(["docker", "build", "-q", "-t", "clawrl-swe-test", str(folder)], check=True, timeout=600)
    yield "clawrl-swe-test"
    subprocess.run(["docker", "rmi", "clawrl-swe-test"], check=False, timeout=60)


@pytest.mark.parametrize(("command", "reward"), [("sed -i s/-/+/ calc.py", 1.0), ("true", -1.0)])
def test_an_issue_in_an_image(image: str, command: str, reward: float) -> None:
    task = SweTask(
        id="calc",
        problem_statement="add(1, 2) is -1.",
        test_patch=make_diff(FILES, {**FILES, **HIDDEN}),
        fail_to_pass=["test_calc.py::test_add"],
        patch=make_diff(FILES, FIXED),
        image=image,
    )
    env = SWEEnv([task], backend="docker")
    state = env.reset()
    assert not state["dropped"], state["reason"]
    state = env.step(state.set("action", format_action("pwd; git log --all --format=%s; grep return calc.py")))["next"]
    assert "/testbed\nBegin\n    return a - b\n" in state["message"]
    for line in (command, f"echo {SENTINEL}"):
        state = env.step(state.set("action", format_action(line)))["next"]
    assert state["reward"].item() == reward, state["reason"]
    env.close()
