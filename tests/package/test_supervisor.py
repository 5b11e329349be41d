"""The supervisor brings back what dies, gives up on a user's mistake, and leaves nothing behind."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import psutil
import pytest

from clawrl_trl.errors import UserError
from clawrl_trl.process import StopRequest
from clawrl_trl.serving.supervisor import Child, Supervisor

SLEEPER = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(600)"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.stop()


def _child(code: str, *arguments: str) -> Child:
    return Child("child", [sys.executable, "-c", code, *arguments])


def _watch(supervisor: Supervisor, until: StopRequest) -> threading.Thread:
    thread = threading.Thread(target=supervisor.watch, args=(until, 0.02))
    thread.start()
    return thread


def test_a_killed_child_comes_back(supervisor: Supervisor, tmp_path: Path) -> None:
    mark = tmp_path / "starts"
    child = supervisor.start(_child(SLEEPER, str(mark)))
    supervisor.wait_until(lambda: mark.exists() and mark.read_text() == "x", child, 20)
    stop = StopRequest()
    thread = _watch(supervisor, stop)
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGKILL)
    waiter = threading.Event()
    for _ in range(400):
        if mark.read_text() == "xx":
            break
        waiter.wait(0.05)
    stop.set()
    thread.join()
    assert mark.read_text() == "xx"
    assert child.restarts == 1


HANGS_ONCE = """
import http.server, os, sys, time
starts = open(sys.argv[1], "a+")
starts.write("x")
starts.flush()
starts.seek(0)
first = len(starts.read()) == 1
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if first and os.path.exists(sys.argv[2]):
            time.sleep(600)
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + f".port{os.getpid()}", "w") as port:
    port.write(str(server.server_port))
server.serve_forever()
"""


def test_a_child_that_hangs_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    mark, hang = tmp_path / "starts", tmp_path / "hang"
    child = _child(HANGS_ONCE, str(mark), str(hang))

    def probe() -> bool:
        assert child.process is not None
        port = Path(f"{mark}.port{child.process.pid}")
        if not port.exists():
            return False
        try:
            return httpx.get(f"http://127.0.0.1:{port.read_text()}", timeout=0.5).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    child.probe, child.hang_timeout = probe, 2.0
    supervisor.start(child)
    supervisor.wait_until(probe, child, 60)
    stop = StopRequest()
    thread = _watch(supervisor, stop)
    waiter = threading.Event()
    while child.answered_at is None:
        waiter.wait(0.02)
    assert child.restarts == 0
    hang.touch()
    while not (child.restarts == 1 and child.answered_at is not None):
        waiter.wait(0.05)
    stop.set()
    thread.join()
    assert mark.read_text() == "xx"


STARTS_ANOTHER = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
other = subprocess.Popen([sys.executable, "-c", stubborn], process_group=0, stdout=subprocess.PIPE)
other.stdout.readline()
with open(sys.argv[1], "w") as mark:
    mark.write(str(other.pid))
time.sleep(600)
"""


def test_what_a_hung_child_has_started_is_killed_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    child = supervisor.start(_child(STARTS_ANOTHER, str(mark)))
    supervisor.wait_until(lambda: mark.exists() and mark.read_text() != "", child, 20)
    other = psutil.Process(int(mark.read_text()))
    child.probe, child.hang_timeout = lambda: False, 1.0
    child.answered_at = time.monotonic() - 2.0
    supervisor._end_hung(child)
    _, alive = psutil.wait_procs([other], timeout=20)
    for process in alive:
        process.kill()
    assert child.process is not None and child.process.returncode == -signal.SIGKILL
    assert not alive


def test_a_long_log_is_moved_aside(supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.serving.supervisor.LOG_LIMIT", 1000, raising=False)
    monkeypatch.setattr("clawrl_trl.serving.supervisor.LOG_PERIOD", 0.0, raising=False)
    code = "import time\nwhile True:\n    print('x' * 100, flush=True)\n    time.sleep(0.01)"
    supervisor.start(_child(code))
    stop = StopRequest()
    thread = _watch(supervisor, stop)
    waiter = threading.Event()
    old = tmp_path / "child.log.1"
    for _ in range(1000):
        if old.exists() and (tmp_path / "child.log").stat().st_size > 0:
            break
        waiter.wait(0.02)
    stop.set()
    thread.join()
    assert old.stat().st_size > 1000 and (tmp_path / "child.log").stat().st_size < 100_000


@pytest.fixture
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.serving.supervisor.LOG_LIMIT", 1000)
    monkeypatch.setattr("clawrl_trl.serving.supervisor.LOG_PERIOD", 0.0)


@pytest.mark.usefixtures("short_logs")
def test_a_full_disk_does_not_end_the_service(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    supervisor.start(_child("import time; time.sleep(600)"))
    log = tmp_path / "child.log"
    log.write_bytes(b"x" * 2000)
    monkeypatch.setattr(shutil, "copyfile", refuse)
    monkeypatch.setattr(shutil, "copyfileobj", refuse)
    supervisor._bound_logs()
    assert log.stat().st_size == 0
    assert "No space left" in caplog.text


@pytest.mark.usefixtures("short_logs")
def test_the_log_of_what_a_child_has_started_is_bounded_too(supervisor: Supervisor, tmp_path: Path) -> None:
    logs = [tmp_path / "vllm.log", tmp_path / "vllm-judge.log"]
    outside = tmp_path / "outside"
    for path in (*logs, outside):
        path.write_bytes(b"x" * 2000)
    (tmp_path / "link.log").symlink_to(outside)
    supervisor._bound_logs()
    copies = [path.with_suffix(".log.1").stat() for path in logs]
    assert [(each.st_size, each.st_mode & 0o777) for each in copies] == [(2000, 0o600)] * 2
    assert [path.stat().st_size for path in (*logs, outside)] == [0, 0, 2000]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE])
def test_a_child_that_can_not_be_started_for_a_while_comes_back(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    child = supervisor.start(_child("import time; time.sleep(600)"))
    assert child.process is not None
    child.process.kill()
    child.process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Mock(side_effect=OSError(number, os.strerror(number))))
        supervisor._revive(child)
        child.restart_at = 0.0
        supervisor._revive(child)
        assert child.process is None and child.restart_at > time.monotonic()
    child.restart_at = 0.0
    supervisor._revive(child)
    assert child.process is not None and child.process.poll() is None and child.restarts == 1


def test_a_users_mistake_is_told_and_not_repeated(supervisor: Supervisor) -> None:
    code = "import sys; print('error: no such model: name another', file=sys.stderr); sys.exit(2)"
    child = supervisor.start(_child(code))
    with pytest.raises(UserError, match=r"^no such model: name another$"):
        supervisor.wait_until(lambda: False, child, 20)
    with pytest.raises(UserError, match="no such model"):
        supervisor.watch(StopRequest(), 0.02)


@pytest.mark.parametrize("before", ["killed", "long up"])
def test_what_worked_before_is_started_again_whatever_it_says(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    code = textwrap.dedent(
        """
        import os, sys, time
        starts = open(sys.argv[1], "a+")
        starts.write("x")
        starts.flush()
        starts.seek(0)
        number = len(starts.read())
        if number == 1 and sys.argv[2] == "killed":
            os.kill(os.getpid(), 9)
        if number < 3:
            print("error: the disk is full", file=sys.stderr)
            sys.exit(2)
        time.sleep(600)
        """
    )
    if before == "long up":
        monkeypatch.setattr("clawrl_trl.serving.supervisor.STABLE_AFTER", 0.0)
    mark = tmp_path / "starts"
    child = supervisor.start(_child(code, str(mark), before))
    stop = StopRequest()
    thread = _watch(supervisor, stop)
    waiter = threading.Event()
    while thread.is_alive() and not (mark.exists() and mark.read_text() == "xxx"):
        waiter.wait(0.05)
    stop.set()
    thread.join()
    assert mark.read_text() == "xxx" and child.restarts == 2


def test_stopping_ends_stubborn_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.serving.supervisor.GRACE", 0.2)
    supervisor = Supervisor(tmp_path)
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(600)"
    mark = tmp_path / "up"
    child = supervisor.start(_child(code, str(mark)))
    supervisor.wait_until(mark.exists, child, 20)
    supervisor.stop()
    assert child.process is not None and child.process.returncode == -signal.SIGKILL


def test_children_follow_a_killed_supervisor(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from clawrl_trl.process import StopRequest
        from clawrl_trl.serving.supervisor import Child, Supervisor
        supervisor = Supervisor(Path(sys.argv[1]))
        child = supervisor.start(Child("child", [sys.executable, "-c", "import time; time.sleep(600)"]))
        print(child.process.pid, flush=True)
        supervisor.watch(StopRequest())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs([child], timeout=20)
    assert not alive
