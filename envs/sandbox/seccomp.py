"""Seccomp filter of the sandbox: system calls refused beyond what namespaces and missing capabilities prevent.

The filter (classic BPF, loaded by bubblewrap) refuses
- sockets of other families than unix, inet and routing netlink: a `vsock` would reach the host of a virtual machine
  past any network namespace;
- System V shared memory and message queues, which no limit counts;
- mounts, and new namespaces, in which a process has rights over mounts, networks and packet filters;
- keyrings, which no namespace separates;
- the kernel's interfaces that are attacked most (`bpf`, `io_uring`, `userfaultfd`, `perf_event_open`).

The names and numbers in the tables are the kernel's.
"""

import errno
import platform
import struct
from functools import cache

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET_CALLS = {"x86_64": {"socket": 41, "socketpair": 53}, "aarch64": {"socket": 198, "socketpair": 199}}
_NAMESPACE_CALLS = {"x86_64": {"clone": 56, "unshare": 272}, "aarch64": {"clone": 220, "unshare": 97}}
_CLONE3 = 435
"""`clone3` reads its flags from memory, where a filter can't look. Where it is missing, the C library uses `clone`."""
_NAMESPACE_FLAGS = {
    "CLONE_NEWNS": 0x00020000,
    "CLONE_NEWCGROUP": 0x02000000,
    "CLONE_NEWUTS": 0x04000000,
    "CLONE_NEWIPC": 0x08000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
    "CLONE_NEWTIME": 0x00000080,
}
_REFUSED_EVERYWHERE = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
}
"""Calls since Linux 5.1 have the same number on every processor."""
_REFUSED = {
    "x86_64": {
        "shmget": 29,
        "msgget": 68,
        "pivot_root": 155,
        "mount": 165,
        "umount2": 166,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "bpf": 321,
        "setns": 308,
        "userfaultfd": 323,
    },
    "aarch64": {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "msgget": 186,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "bpf": 280,
        "setns": 268,
        "userfaultfd": 282,
    },
}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_TYPING_REQUESTS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
"""`ioctl` requests that type into a terminal: its next reader, such as the user's shell, would run what was typed."""
_FAMILIES = {"unix": 1, "inet": 2, "inet6": 10}
_NETLINK, _NETLINK_ROUTE = 16, 0
_X32 = 0x40000000
"""Bit of the numbers of the x32 ABI on x86_64, under which each call could be made past the tables."""
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in `struct seccomp_data`: number, architecture, low halves of the first three arguments."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@cache
def build_seccomp_filter(machine: str | None = None) -> bytes:
    """Build the filter for a processor.

    Args:
        machine (`str`, *optional*): Name of the architecture as in `platform.machine()`; default: this machine's.

    Returns:
        `bytes`: The BPF program, an array of `struct sock_filter`; empty for an architecture without a filter.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHES:
        return b""
    program = [
        # First of all: a program for another architecture (i386 on x86_64) has other numbers for the same calls.
        _encode(_LOAD, _ARCH),
        _encode(_EQUAL, _ARCHES[machine], then=1),
        _refuse(errno.ENOSYS),
        _encode(_LOAD, _NUMBER),
        _encode(_AT_LEAST, _X32, otherwise=1),
        _refuse(errno.ENOSYS),
        # ENOSYS, not EPERM: only then does the C library fall back to `clone`, whose flags can be checked.
        _encode(_EQUAL, _CLONE3, otherwise=1),
        _refuse(errno.ENOSYS),
    ]
    for number in (_REFUSED[machine] | _REFUSED_EVERYWHERE).values():
        program += [_encode(_EQUAL, number, otherwise=1), _refuse(errno.EPERM)]
    for name, number in _NAMESPACE_CALLS[machine].items():
        program += _match_call(number, _refuse_namespaces(name))
    for number in _SOCKET_CALLS[machine].values():
        program += _match_call(number, _allow_known_families())
    program += _match_call(_IOCTL[machine], _refuse_typing())
    return b"".join([*program, _encode(_RETURN, _ALLOW)])


def _refuse_namespaces(call: str) -> list[bytes]:
    # CLONE_NEWTIME lies in the low byte, which in clone's flags is the signal sent at the child's end.
    flags = sum(bit for name, bit in _NAMESPACE_FLAGS.items() if call == "unshare" or name != "CLONE_NEWTIME")
    return [
        _encode(_LOAD, _FIRST),
        _encode(_ANY_BIT, flags, otherwise=1),
        _refuse(errno.EPERM),
        _encode(_RETURN, _ALLOW),
    ]


def _refuse_typing() -> list[bytes]:
    # The second argument's low half: the kernel takes `ioctl` requests as 32 bits.
    program = [_encode(_LOAD, _SECOND)]
    for request in _TYPING_REQUESTS.values():
        program += [_encode(_EQUAL, request, otherwise=1), _refuse(errno.EPERM)]
    return [*program, _encode(_RETURN, _ALLOW)]


def _allow_known_families() -> list[bytes]:
    """Allow sockets of the common families, and of netlink those that list addresses and routes."""
    program = [_encode(_LOAD, _FIRST)]
    for family in _FAMILIES.values():
        program += [_encode(_EQUAL, family, otherwise=1), _encode(_RETURN, _ALLOW)]
    # Address lookups need routing netlink; nf_tables and socket diagnosis speak netlink too, and are refused.
    program += [_encode(_EQUAL, _NETLINK, otherwise=3), _encode(_LOAD, _THIRD)]
    program += [_encode(_EQUAL, _NETLINK_ROUTE, otherwise=1), _encode(_RETURN, _ALLOW)]
    return [*program, _refuse(errno.EAFNOSUPPORT)]


def _match_call(number: int, body: list[bytes]) -> list[bytes]:
    """Run `body`, which ends with a return, for one call; for others the number stays loaded."""
    return [_encode(_EQUAL, number, otherwise=len(body)), *body]


def _refuse(error: int) -> bytes:
    return _encode(_RETURN, _ERRNO | error)


def _encode(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode one `struct sock_filter`; `then` and `otherwise` are its jumps, in instructions to skip."""
    return struct.pack("HBBI", code, then, otherwise, value)
