"""Attempts to escape from the sandbox, each with the proof that it would have worked outside."""

import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import MB, Limits
from clawrl_trl.envs.sandbox.resource_limits import iterate_descendants
from clawrl_trl.envs.sandbox.sandbox import CommandResult, Sandbox

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
SMALL = Limits(memory_mb=128, cpu_s=20, processes=32, file_mb=8, disk_mb=32)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits=SMALL) as sandbox:
        yield sandbox


def python(sandbox: Sandbox, code: str, timeout: float = 60) -> CommandResult:
    return sandbox.run(["python", "-c", code], timeout=timeout)


def bash(sandbox: Sandbox, code: str, timeout: float = 60) -> CommandResult:
    return sandbox.run(["bash", "-c", code], timeout=timeout)


# Reading outside


def test_nothing_of_the_host_can_be_read_but_its_programs(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    for path in (secret, Path(__file__), Path("/etc/shadow"), Path("/root/.bashrc"), Path.home() / ".ssh"):
        assert bash(sandbox, f"cat {path} || ls {path}").exit_code != 0, path
    listed = bash(sandbox, "ls -A /").stdout.split()
    assert not {"home", "mnt", "media", "srv", "var", "sys", "boot", "run"} & set(listed)


@pytest.mark.parametrize("way", ["../../../../..{}", "/proc/self/root{}", "/proc/1/root{}", "/proc/self/cwd/../..{}"])
def test_no_detour_leads_outside(sandbox: Sandbox, tmp_path: Path, way: str) -> None:
    (tmp_path / "secret").write_text("swordfish")
    result = bash(sandbox, f"cat {way.format(tmp_path / 'secret')}")
    assert result.exit_code != 0 and "swordfish" not in result.stdout


def test_the_hosts_environment_is_not_inherited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "swordfish")
    result = bash(sandbox, "env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "PATH=" in result.stdout and "swordfish" not in result.stdout


def test_no_file_of_the_host_is_inherited_open(sandbox: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w+") as secret:
        os.set_inheritable(secret.fileno(), True)
        result = bash(sandbox, "readlink /proc/self/fd/*")
    assert "secret" not in result.stdout


def test_symbolic_links_lead_nowhere(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("swordfish")
    (sandbox.path / "link").symlink_to(tmp_path / "secret")
    (sandbox.path / "up").symlink_to("../..")
    result = bash(sandbox, f"cat link up{tmp_path}/secret; echo overwritten > link")
    assert "swordfish" not in result.stdout and (tmp_path / "secret").read_text() == "swordfish"


def test_a_link_in_the_work_folder_gives_nothing_outside_away(sandbox: Sandbox, tmp_path: Path) -> None:
    """Root gives the work folder's files to the sandbox's user; a link there must not give its target."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    owner = (outside / "file").stat().st_uid
    bash(sandbox, f"ln -s {outside} folder; ln -s {outside}/file file")
    bash(sandbox, "true")
    assert (outside / "file").stat().st_uid == owner and outside.stat().st_uid == owner
    sandbox.close()
    assert (outside / "file").read_text() == "mine"


# Writing outside


@pytest.mark.parametrize("path", ["/a", "/usr/a", "/etc/a", "/etc/passwd", "/dev/a", "/opt/python/a", "/bin/ls"])
def test_only_the_work_folder_and_scratch_can_be_written(sandbox: Sandbox, path: str) -> None:
    assert bash(sandbox, f"echo x >> {path}").exit_code != 0
    assert bash(sandbox, "echo x > /work/a && echo x > /tmp/a && echo x > /dev/shm/a && cat /tmp/a").stdout == "x\n"


def test_what_is_mounted_cannot_be_changed(sandbox: Sandbox) -> None:
    for attempt in (
        "mount -o remount,rw /",
        "umount /usr",
        "mount -t tmpfs none /usr",
        "unshare --user --map-root-user --mount mount -o remount,rw,bind /usr",
        "unshare --user --map-root-user --mount umount /proc/sys",
        "chroot / true",
        "mknod /work/disk b 8 0",
        "pivot_root /work /work",
    ):
        assert bash(sandbox, attempt).exit_code != 0, attempt


def test_no_capability_and_no_way_to_root(sandbox: Sandbox) -> None:
    status = bash(sandbox, "cat /proc/self/status; id -u").stdout
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status and status.endswith("1000\n")
    assert python(sandbox, "import os; os.setuid(0)").exit_code != 0


def test_what_it_writes_is_never_roots(sandbox: Sandbox) -> None:
    bash(sandbox, "cp /bin/true tool; chmod 4755 tool")
    assert (sandbox.path / "tool").stat().st_uid != 0


# Network


@pytest.fixture
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_no_network(sandbox: Sandbox, server: int) -> None:
    connect = f"import socket; socket.create_connection(('127.0.0.1', {server}), 5)"
    assert subprocess.run(["python3", "-c", connect], check=False).returncode == 0
    result = python(sandbox, connect)
    assert result.exit_code != 0 and "ConnectionRefused" in result.stderr
    assert bash(sandbox, "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '").stdout == "lo\n"


def test_no_abstract_socket_of_the_host(sandbox: Sandbox) -> None:
    name = f"\0clawrl-test-{os.getpid()}"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        assert subprocess.run(["python3", "-c", connect], check=False).returncode == 0
        assert python(sandbox, connect).exit_code != 0


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET"])
def test_no_socket_past_the_network_namespace(sandbox: Sandbox, family: str) -> None:
    """A vsock reaches the host of a virtual machine whatever the namespace."""
    result = python(sandbox, f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
    assert result.exit_code != 0 and "Errno 97" in result.stderr


def test_sockets_within_it_work(sandbox: Sandbox) -> None:
    code = (
        "import socket\nfor family, place in ((socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_UNIX, 'here')):\n"
        "    with socket.socket(family) as server:\n        server.bind(place)\n        server.listen()\n"
        "        socket.socket(family).connect(server.getsockname())\n"
    )
    assert python(sandbox, code).exit_code == 0


def test_network_where_it_is_allowed(server: int) -> None:
    with Sandbox(network=True, limits=SMALL) as sandbox:
        result = python(sandbox, f"import socket; socket.create_connection(('127.0.0.1', {server}), 5)")
        assert result.exit_code == 0, result.stderr


# Using everything up


def test_fork_bomb(sandbox: Sandbox) -> None:
    counted: list[int] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.05):
            counted.append(sum(1 for _ in iterate_descendants(os.getpid())))

    watcher = threading.Thread(target=count)
    watcher.start()
    result = bash(sandbox, "f() { f | f & }; f; sleep 1000", timeout=4)
    stop.set()
    watcher.join()
    assert result.timed_out and "Resource temporarily unavailable" in result.stderr
    assert 1 < max(counted) < SMALL.processes + 20
    assert bash(sandbox, "echo alive").stdout == "alive\n"


def test_each_sandbox_has_processes_of_its_own(sandbox: Sandbox) -> None:
    full = sandbox.popen(["bash", "-c", "for i in $(seq 20); do sleep 1000 & done; echo up; wait"])
    assert full.stdout is not None and full.stdout.readline() == b"up\n"
    with Sandbox(limits=SMALL) as other:
        result = bash(other, "for i in $(seq 20); do sleep 1000 & done; echo up")
    assert result.stdout == "up\n" and "unavailable" not in result.stderr


def test_memory_bomb_of_one_process(sandbox: Sandbox) -> None:
    result = python(sandbox, "x = bytearray(10 ** 9)")
    assert result.exit_code == 1 and "MemoryError" in result.stderr


def test_memory_bomb_of_many_processes(sandbox: Sandbox) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(40 * 2 ** 20)\ntime.sleep(1000)"
    result = python(sandbox, code)
    assert result.exceeded_limit == "more than 128 MB of memory" and not result.timed_out


def test_memory_bomb_in_shared_memory(sandbox: Sandbox) -> None:
    code = (
        "import mmap, time\nx = mmap.mmap(-1, 2 ** 30)\nfor i in range(0, 2 ** 30, 4096): x[i] = 1\ntime.sleep(1000)"
    )
    result = python(sandbox, code)
    assert result.exceeded_limit == "more than 128 MB of memory"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("shmget", "29, 0, 1 << 20, 0o1600"),
        ("msgget", "68, 0, 0o1600"),
        ("keyctl", "250, 0, -3, 1"),
        ("bpf", "321, 0, None, 0"),
        ("perf_event_open", "298, None, 0, -1, -1, 0"),
        ("userfaultfd", "323, 1"),
        ("io_uring_setup", "425, 8, None"),
    ],
)
def test_what_no_limit_counts_is_refused(sandbox: Sandbox, call: str, arguments: str) -> None:
    code = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall({arguments}), ctypes.get_errno())"
    assert python(sandbox, code).stdout == "-1 1\n", call


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_other_numbers_for_the_same_calls_lead_nowhere(sandbox: Sandbox) -> None:
    x32 = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(0x40000000 | 39), ctypes.get_errno())"
    assert python(sandbox, x32).stdout == "-1 38\n"


@pytest.mark.parametrize(
    "call",
    [
        "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "syscall(430, b'tmpfs', 0)",  # fsopen
        "syscall(428, -100, b'/tmp', 1)",  # open_tree, a copy
    ],
)
def test_no_scratch_of_its_own_is_mounted_beside_the_limits(sandbox: Sandbox, call: str) -> None:
    """Root's sandbox can make user namespaces, and in one of its own a process has every right but the filter's."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).{call} < 0)"
    alone = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "unchanged"]
    assert sandbox.run([*alone, "python", "-c", code], timeout=60).exit_code != 0


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_scratch_is_bounded(sandbox: Sandbox, place: str) -> None:
    result = bash(sandbox, f"for i in $(seq 50); do head -c 4000000 /dev/zero > {place}/$i || exit 7; done")
    assert result.exit_code == 7 and "No space left" in result.stderr


def test_disk_fill(sandbox: Sandbox) -> None:
    result = bash(sandbox, "i=0; while :; do i=$((i+1)); head -c 4000000 /dev/zero > $i; done")
    assert result.exceeded_limit == "more than 32 MB on disk" and not result.timed_out
    assert sum(path.stat().st_size for path in sandbox.path.iterdir()) > 32 * MB


@pytest.mark.parametrize("make", ["open(name, 'wb'); os.unlink(name)", "os.fdopen(os.memfd_create(name), 'wb')"])
def test_files_without_a_name_count(sandbox: Sandbox, make: str) -> None:
    make = f"file = {make}"
    write = "file.write(bytes(2 ** 22)); file.flush(); held.append(file)"
    code = f"import os\nheld = []\nwhile True:\n    name = str(len(held))\n    {make}\n    {write}"
    result = python(sandbox, code)
    assert result.exceeded_limit == "more than 32 MB on disk" and not result.timed_out


def test_one_big_file(sandbox: Sandbox) -> None:
    result = bash(sandbox, "head -c 20000000 /dev/zero > big; stat -c %s big")
    assert int(result.stdout) == SMALL.file_mb * MB


def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    for limit in ("-u", "-f", "-d", "-t"):
        assert bash(sandbox, f"ulimit {limit} unlimited").exit_code != 0, limit


def test_cpu_time(tmp_path: Path) -> None:
    with Sandbox(limits=Limits(cpu_s=1)) as sandbox:
        result = bash(sandbox, "while :; do :; done")
    assert result.exit_code in (-9, 137, -24, 152) and not result.timed_out


def test_endless_output(sandbox: Sandbox) -> None:
    result = bash(sandbox, "yes", timeout=2)
    assert result.timed_out and result.truncated and len(result.stdout) < 2 * MB


# Processes outside


def test_no_process_outside_is_seen_or_signalled(sandbox: Sandbox) -> None:
    with subprocess.Popen(["sleep", "1000"]) as outside:
        try:
            result = bash(sandbox, f"kill -9 {outside.pid} {os.getpid()} {os.getppid()}")
            assert result.exit_code != 0 and outside.poll() is None
            assert bash(sandbox, "kill -9 -1; kill -9 1; kill -9 0").exit_code != 0
            assert outside.poll() is None
            names = bash(sandbox, "cat /proc/[0-9]*/comm").stdout.split()
            assert "sleep" not in names and "pytest" not in names and len(names) <= 6
        finally:
            outside.kill()


def test_the_outer_process_cannot_be_traced(sandbox: Sandbox) -> None:
    result = bash(sandbox, "cat /proc/1/mem /proc/1/environ; ls /proc/1/cwd/; ls -l /proc/1/fd")
    assert result.exit_code != 0 and result.stdout == ""


# /proc


@pytest.mark.parametrize(
    "path",
    ["sys/kernel/core_pattern", "sys/kernel/hostname", "sysrq-trigger", "sys/vm/drop_caches", "sys/kernel/modprobe"],
)
def test_proc_cannot_be_written(sandbox: Sandbox, path: str) -> None:
    assert bash(sandbox, f"echo 1 > /proc/{path}").exit_code != 0


@pytest.mark.parametrize("path", ["kcore", "kmsg", "1/maps", "1/stack", "1/environ"])
def test_proc_tells_nothing_of_the_kernel(sandbox: Sandbox, path: str) -> None:
    assert bash(sandbox, f"head -c 1 /proc/{path}").exit_code != 0


def test_a_fresh_proc_cannot_be_mounted(sandbox: Sandbox) -> None:
    attempt = "mkdir -p p; unshare --user --map-root-user --mount --pid --fork mount -t proc proc p && ls p"
    assert bash(sandbox, attempt).exit_code != 0


def test_there_is_no_terminal_to_type_into(sandbox: Sandbox) -> None:
    result = bash(sandbox, "exec 3<> /dev/tty")
    assert result.exit_code != 0 and "No such device" in result.stderr


def test_nothing_outlives_the_program(tmp_path: Path) -> None:
    """Killed with no chance to tidy up, it takes its sandboxes with it."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom clawrl_trl.envs.sandbox.sandbox import Sandbox\n"
        "process = Sandbox(Path(sys.argv[1])).popen(['bash', '-c', 'sleep 1000 & echo up; wait'])\n"
        "print(process.stdout.readline().decode(), flush=True)\nprocess.wait()"
    )
    program = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    inside = [psutil.Process(pid) for pid in iterate_descendants(program.pid) if pid != program.pid]
    assert len(inside) >= 3
    program.kill()
    program.communicate()
    assert psutil.wait_procs(inside, timeout=30)[1] == []
