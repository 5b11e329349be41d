"""The sandbox's Docker back end, against a real engine."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.sandbox import Sandbox
from clawrl_trl.envs.terminal.shell import CommandFolder, Shell

IMAGE = "python:3.11-slim"


def missing() -> str:
    if shutil.which("docker") is None:
        return "Docker is not installed"
    inspection = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, text=True, check=False)
    return inspection.stderr.strip().splitlines()[-1] if inspection.returncode else ""


pytestmark = [pytest.mark.docker, pytest.mark.skipif(bool(missing()), reason=f"needs Docker and {IMAGE}: {missing()}")]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(backend="docker", limits=Limits(memory_mb=128)) as sandbox:
        yield sandbox


def test_a_command(sandbox: Sandbox) -> None:
    result = sandbox.run(["bash", "-c", "cat > a; pwd; exit 3"], input="given", timeout=120)
    assert (result.exit_code, result.stdout) == (3, "/work\n") and (sandbox.path / "a").read_text() == "given"


def test_no_network(sandbox: Sandbox) -> None:
    result = sandbox.run(["cut", "-d:", "-f1", "/proc/net/dev"], timeout=120)
    assert [line.strip() for line in result.stdout.splitlines()[2:]] == ["lo"]


def test_a_time_limit_ends_the_container(sandbox: Sandbox) -> None:
    result = sandbox.run(["bash", "-c", "while :; do date > tick; done"], timeout=10)
    assert result.timed_out
    names = subprocess.run(["docker", "ps", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    assert "clawrl-" not in names.stdout


def test_a_shell() -> None:
    commands = CommandFolder()
    with Sandbox(backend="docker", binds=[commands.bind]) as sandbox:
        shell = Shell(sandbox, commands)
        shell.execute("x=5", 120)
        assert shell.execute("echo $x", 120).text == "5\n"
    commands.close()
