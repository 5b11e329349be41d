"""The calls that the kernel refuses inside, whoever made the sandbox."""

import errno
import os
import platform
import struct
from collections.abc import Iterator

import pytest

from clawrl_trl.envs.sandbox import backends, sandbox
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.sandbox import CommandResult, Sandbox
from clawrl_trl.envs.sandbox.seccomp import build_seccomp_filter

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
FLAGS = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "user and net": 0x50000000,
}
NUMBERS = {
    "x86_64": {
        "clone": 56,
        "unshare": 272,
        "setns": 308,
        "clone3": 435,
        "socket": 41,
        "socketpair": 53,
        "getpid": 39,
        "ioctl": 16,
    },
    "aarch64": {
        "clone": 220,
        "unshare": 97,
        "setns": 268,
        "clone3": 435,
        "socket": 198,
        "socketpair": 199,
        "getpid": 172,
        "ioctl": 29,
    },
}
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@pytest.fixture(params=["as it is", "by anybody"])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox made with this user's rights, and one made the way of users who are not root."""
    if request.param == "by anybody" and os.geteuid() == 0:
        monkeypatch.setattr(backends.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(sandbox.os, "geteuid", lambda: 1000)
    with Sandbox(limits=Limits(memory_mb=256, processes=32)) as limited_sandbox:
        yield limited_sandbox


def python(box: Sandbox, code: str) -> CommandResult:
    return box.run(["python", "-c", code], timeout=60)


def syscall(box: Sandbox, name: str, *arguments: int) -> int:
    """The error a call made inside comes to; 0: none. What clone starts ends at once."""
    number = NUMBERS[platform.machine()][name]
    numbers = ", ".join(f"ctypes.c_long({value})" for value in (number, *arguments))
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nparent = os.getpid()\n"
        f"answer = libc.syscall({numbers})\nif os.getpid() != parent: os._exit(0)\n"
        "print(ctypes.get_errno() if answer < 0 else 0)"
    )
    result = python(box, code)
    assert result.exit_code == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("call", ["unshare", "clone"])
def test_no_namespace_can_be_made(box: Sandbox, call: str, kind: str) -> None:
    flags = FLAGS[kind]
    assert syscall(box, call, *((flags,) if call == "unshare" else (flags | 17, 0, 0, 0, 0))) == errno.EPERM


def test_no_namespace_by_the_newer_calls(box: Sandbox) -> None:
    assert syscall(box, "clone3", 0, 0) == errno.ENOSYS
    assert syscall(box, "setns", 0, 0) == errno.EPERM
    assert box.run(["unshare", "--user", "--map-root-user", "--net", "true"], timeout=60).exit_code != 0


def test_netlink_lists_addresses_and_no_more(box: Sandbox) -> None:
    for protocol in (4, 12, 16):  # socket diagnosis, nf_tables, generic
        result = python(box, f"import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, {protocol})")
        assert result.exit_code != 0 and "Errno 97" in result.stderr, protocol
    assert python(box, "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)").exit_code == 0
    assert syscall(box, "socketpair", 30, 5, 0, 0) == errno.EAFNOSUPPORT  # TIPC


def test_threads_and_processes_start_as_ever(box: Sandbox) -> None:
    code = (
        "import os, subprocess, threading\nthread = threading.Thread(target=print, args=('thread',))\n"
        "thread.start(); thread.join()\nsubprocess.run(['echo', 'spawned'])\n"
        "os.posix_spawn('/bin/true', ['true'], {})\nos.wait()\n"
    )
    result = box.run(["python", "-u", "-c", code], timeout=60)
    assert result.stdout == "thread\nspawned\n", result.stderr


def test_the_user_inside_is_the_same(box: Sandbox) -> None:
    code = "id -u; id -g; grep -h Cap /proc/self/status; ls -ld /work | cut -d' ' -f3"
    result = box.run(["bash", "-c", code], timeout=60)
    assert result.stdout.splitlines()[:2] == ["1000", "1000"] and result.stdout.splitlines()[-1] == "agent"
    assert result.stdout.count("0000000000000000") == 5


def run_filter(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """What a filter answers a call, by the rules of classic BPF: an errno, 0 for allowed."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, ARCHES[machine] if arch is None else arch, 0, *padded)
    program = list(struct.iter_unpack("HBBI", build_seccomp_filter(machine)))
    place = loaded = 0
    while True:
        code, then, otherwise, value = program[place]
        place += 1
        if code == 0x20:
            loaded = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value & 0xFFFF if value != 0x7FFF0000 else 0
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += then if holds else otherwise


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_of_each_processor(machine: str) -> None:
    calls = NUMBERS[machine]
    for flags in FLAGS.values():
        assert run_filter(machine, calls["unshare"], (flags,)) == errno.EPERM
        assert run_filter(machine, calls["clone"], (flags | 17,)) == errno.EPERM
    assert run_filter(machine, calls["unshare"], (0x80,)) == errno.EPERM
    assert run_filter(machine, calls["unshare"], (0x400,)) == 0 == run_filter(machine, calls["clone"], (0x3D0F00,))
    assert run_filter(machine, calls["clone3"]) == errno.ENOSYS and run_filter(machine, calls["getpid"]) == 0
    assert run_filter(machine, calls["setns"]) == errno.EPERM
    for call in ("socket", "socketpair"):
        assert run_filter(machine, calls[call], (2, 1, 0)) == 0 == run_filter(machine, calls[call], (16, 3, 0))
        assert run_filter(machine, calls[call], (16, 3, 12)) == errno.EAFNOSUPPORT
        assert run_filter(machine, calls[call], (40, 1, 0)) == errno.EAFNOSUPPORT
    assert run_filter(machine, calls["ioctl"], (0, 0x5412)) == errno.EPERM  # TIOCSTI types into a terminal
    assert run_filter(machine, calls["ioctl"], (0, 0x5413)) == 0
    assert run_filter(machine, calls["getpid"], arch=0x40000003) == errno.ENOSYS
    assert run_filter(machine, calls["getpid"] | 0x40000000) == errno.ENOSYS


def test_a_processor_without_a_filter() -> None:
    assert build_seccomp_filter("riscv64") == b""
