"""The sandbox in ordinary use."""

import json
import os
import re
import threading
import time
from pathlib import Path

import psutil
import pytest
from child_processes import has_ended

from clawrl_trl.config.flags import list_flags
from clawrl_trl.envs.runs.practice_options import PracticeArguments
from clawrl_trl.envs.sandbox.backend import SandboxSpec
from clawrl_trl.envs.sandbox.backends import BACKENDS, Docker
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import iterate_descendants, measure_folder
from clawrl_trl.envs.sandbox.sandbox import Bind, Sandbox, SandboxClosed, choose_backend
from clawrl_trl.errors import UserError

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]


@pytest.fixture
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def test_a_command_runs_in_the_work_folder(sandbox: Sandbox) -> None:
    (sandbox.path / "a.py").write_text("print(1 + 1)")
    result = sandbox.run(["python", "a.py"], timeout=60)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "2\n", "")
    assert not result.timed_out and not result.truncated and result.exceeded_limit == ""


def test_what_it_writes_is_on_the_host_and_stays_between_commands(sandbox: Sandbox) -> None:
    sandbox.run(["bash", "-c", "mkdir d && echo hello > d/a"], timeout=60)
    assert (sandbox.path / "d" / "a").read_text() == "hello\n"
    (sandbox.path / "d" / "b").write_text("from the host")
    result = sandbox.run(["bash", "-c", "cat a b && rm b && pwd"], timeout=60, cwd="d")
    assert result.stdout == "hello\nfrom the host/work/d\n" and result.exit_code == 0


def test_input_exit_code_and_both_streams(sandbox: Sandbox) -> None:
    result = sandbox.run(["bash", "-c", "cat; echo wrong >&2; exit 3"], input="given", timeout=60)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "given", "wrong\n")


def test_input_that_nobody_reads(sandbox: Sandbox) -> None:
    assert sandbox.run(["true"], input=b"x" * (1 << 20), timeout=60).exit_code == 0


def test_much_input_and_output_at_once(sandbox: Sandbox) -> None:
    data = os.urandom(1 << 18).hex()
    assert sandbox.run(["cat"], input=data, timeout=60).stdout == data


def test_output_is_bounded_and_keeps_both_ends(sandbox: Sandbox) -> None:
    sandbox = Sandbox(sandbox.path, limits=Limits(output_kb=1))
    result = sandbox.run(["bash", "-c", "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo last"], timeout=60)
    assert result.truncated and result.exit_code == 0 and len(result.stdout) < 1200
    assert result.stdout.startswith("first\n") and result.stdout.endswith("last\n")


def test_a_command_is_ended_with_what_it_started_when_its_time_is_up(sandbox: Sandbox) -> None:
    script = "(setsid bash -c 'while :; do date > tick; done' &) ; echo started; sleep 1000"
    result = sandbox.run(["bash", "-c", script], timeout=3)
    assert result.timed_out and result.exit_code != 0 and result.stdout == "started\n"
    assert _nothing_runs_in(sandbox.path)


def test_what_a_command_leaves_running_ends_with_it(sandbox: Sandbox) -> None:
    result = sandbox.run(["bash", "-c", "sleep 1000 & sleep 1000 & echo bye"], timeout=60)
    assert result.stdout == "bye\n" and not result.timed_out
    assert _nothing_runs_in(sandbox.path)


def test_a_long_lived_command_is_talked_to_through_pipes(sandbox: Sandbox) -> None:
    process = sandbox.popen(["python", "-u", "-c", "while True: print(int(input()) + 1)"])
    assert process.stdin is not None and process.stdout is not None
    for number in (1, 41):
        process.stdin.write(f"{number}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline() == f"{number + 1}\n".encode()
    sandbox.end(process)
    assert process.poll() is not None and process.stdout.closed


def test_a_terminal(sandbox: Sandbox) -> None:
    process = sandbox.popen(["bash", "-c", 'test -t 0 && test -t 1 && read line && echo "<$line>"'], pty=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hi\n")
    output = b""
    while b"<hi>" not in output:
        output += process.stdout.read(1024)
    assert process.wait(60) == 0


def test_closing_ends_everything_and_removes_the_folder() -> None:
    before = _open_files()
    with Sandbox() as sandbox:
        process = sandbox.popen(["sleep", "1000"])
        sandbox.run(["bash", "-c", "mkdir -p a/b && touch a/b/c && chmod 000 a/b a"], timeout=60)
        assert psutil.Process(process.pid).is_running()
    assert not sandbox.path.exists() and process.poll() is not None
    assert _nothing_runs_in(sandbox.path) and _open_files() == before
    with pytest.raises(SandboxClosed):
        sandbox.run(["true"], timeout=60)
    sandbox.close()


def test_when_a_command_was_ended_nothing_of_it_writes_any_more(sandbox: Sandbox) -> None:
    script = "for i in $(seq 20); do (while :; do echo x >> $i; done) & done; echo up; wait"
    process = sandbox.popen(["bash", "-c", script])
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    inside = [psutil.Process(pid) for pid in iterate_descendants(process.pid)]
    assert len(inside) > 20
    sandbox.end(process)
    assert all(map(has_ended, inside))


def test_a_folder_of_the_users_stays(tmp_path: Path) -> None:
    with Sandbox(tmp_path) as sandbox:
        sandbox.run(["touch", "made"], timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_sandbox_outlives_the_thread_that_started_its_command(sandbox: Sandbox) -> None:
    started = []
    thread = threading.Thread(target=lambda: started.append(sandbox.popen(["cat"])))
    thread.start()
    thread.join()
    (process,) = started
    process.stdin.write(b"still here\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"still here\n"


def test_binds_and_environment(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "a").write_text("text")
    for writable in (False, True):
        with Sandbox(binds=[Bind(shared, "/data/here", writable)], env={"WHO": "me"}) as sandbox:
            result = sandbox.run(["bash", "-c", "cat /data/here/a; echo $WHO; touch /data/here/new"], timeout=60)
        assert result.stdout == "textme\n" and (result.exit_code == 0) == writable
        assert (shared / "new").exists() == writable


def test_pytest_can_be_run_inside(sandbox: Sandbox) -> None:
    (sandbox.path / "test_it.py").write_text("def test_it():\n    assert 1 + 1 == 2\n")
    result = sandbox.run(["python", "-m", "pytest", "-q", "-p", "no:cacheprovider"], timeout=120)
    assert result.exit_code == 0 and "1 passed" in result.stdout
    assert [path.name for path in sandbox.path.iterdir()] == ["test_it.py"]


def test_mistakes_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Sandbox(tmp_path / "none")
    with pytest.raises(UserError, match="bubblewrap, docker, none"):
        Sandbox(backend="chroot")
    with pytest.raises(UserError, match="memory_mb"):
        Limits(memory_mb=0)
    monkeypatch.setattr("clawrl_trl.envs.sandbox.backends.diagnose_bubblewrap", lambda: "bwrap is not installed")
    with pytest.raises(UserError, match="bwrap is not installed") as caught:
        choose_backend()
    flag, value = re.findall(r"--(\w+) '(.*)'", str(caught.value))[0]
    assert flag in list_flags([PracticeArguments]) and json.loads(value) == {"backend": "none"}
    assert choose_backend(unsafe_no_sandbox=True) == "none"


def test_without_a_sandbox_where_the_user_insists() -> None:
    with Sandbox(backend="none") as sandbox:
        result = sandbox.run(["bash", "-c", "sleep 1000 & echo here > a; pwd"], timeout=10)
        assert result.stdout == f"{sandbox.path}\n" and (sandbox.path / "a").exists()
        assert _nothing_runs_in(sandbox.path)


def test_what_docker_is_told(tmp_path: Path) -> None:
    assert set(BACKENDS) == {"bubblewrap", "docker", "none"}
    spec = SandboxSpec(
        tmp_path, "clawrl-x", False, Limits(memory_mb=9), (Bind(tmp_path, "/d"),), {"A": "b"}, "an/image"
    )
    command = " ".join(Docker().build_command(spec, ["echo", "1"], "/work", pty=False))
    assert command.endswith("--workdir /work an/image echo 1")
    for part in ("--network none", "--cap-drop ALL", "--memory 9m", f"{tmp_path}:/d:ro", "--env A=b", "--read-only"):
        assert part in command


def test_a_folder_is_measured_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "up").symlink_to("/usr")
    assert 100_000 <= measure_folder(tmp_path, 1 << 30) < 200_000


def _nothing_runs_in(path: Path) -> bool:
    """Whether no process but this one's own knows of a sandbox's folder, within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        own = [pid for pid in iterate_descendants(os.getpid()) if pid != os.getpid()]
        if not any(str(path) in _command_line(pid) for pid in own) and not _is_mounted(path):
            return True
    return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _is_mounted(path: Path) -> bool:
    """Whether a process of any user has the folder in its mounts."""
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if path.name in mounts.read_text():
                return True
        except OSError:
            continue
    return False


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_command_that_is_ended_while_it_starts_leaves_nothing(sandbox: Sandbox) -> None:
    for _ in range(30):
        sandbox.end(sandbox.popen(["sleep", "600"]))
    running = psutil.process_iter(["cmdline"])
    ours = [process for process in running if str(sandbox.path) in " ".join(process.info["cmdline"] or ())]
    survivors = psutil.wait_procs(ours, timeout=10)[1]
    assert all(map(has_ended, survivors))
