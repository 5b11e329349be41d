"""System calls refused to sandboxed processes, beyond what namespaces and missing rights keep from them.

A seccomp filter (BPF) for bubblewrap: no sockets but those of a local machine and of the internet (a `vsock` would
reach the host of a virtual machine past any network namespace), no System V memory and queues, which no limit counts,
no namespaces of its own (in them a process has rights over mounts, networks and packet filters that it lacks here), no
mounts, no keyrings, which no namespace parts, and none of the interfaces of the kernel that are attacked the most.
"""

import errno
import platform
import struct
from functools import cache

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKETS = {"x86_64": {"socket": 41, "socketpair": 53}, "aarch64": {"socket": 198, "socketpair": 199}}
_NAMESPACES = {"x86_64": {"clone": 56, "unshare": 272}, "aarch64": {"clone": 220, "unshare": 97}}
_CLONE3 = 435
"""Reads its flags from memory, where a filter can't look; the C library does without it."""
_NEW = {
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
_TYPING = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
"""Requests that type into a terminal, for whoever reads from it next."""
_FAMILIES = {"unix": 1, "inet": 2, "inet6": 10}
_NETLINK, _NETLINK_ROUTE = 16, 0
_X32 = 0x40000000
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in `struct seccomp_data`."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@cache
def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter of a processor.

    Args:
        machine (`str`, *optional*): Its name, as `platform.machine()` tells it; default: this machine's.

    Returns:
        `bytes`: The program; empty where there is none for this processor.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHES:
        return b""
    program = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, _ARCHES[machine], then=1),
        _refuse(errno.ENOSYS),  # a program for another processor would have other numbers
        _op(_LOAD, _NUMBER),
        _op(_AT_LEAST, _X32, otherwise=1),
        _refuse(errno.ENOSYS),
        _op(_EQUAL, _CLONE3, otherwise=1),
        _refuse(errno.ENOSYS),
    ]
    for number in (_REFUSED[machine] | _REFUSED_EVERYWHERE).values():
        program += [_op(_EQUAL, number, otherwise=1), _refuse(errno.EPERM)]
    for name, number in _NAMESPACES[machine].items():
        program += _on_call(number, _no_namespaces(name))
    for number in _SOCKETS[machine].values():
        program += _on_call(number, _known_families())
    program += _on_call(_IOCTL[machine], _no_typing())
    return b"".join([*program, _op(_RETURN, _ALLOW)])


def _no_namespaces(call: str) -> list[bytes]:
    # The low byte of clone's flags is a signal, which CLONE_NEWTIME would look like.
    flags = sum(bit for name, bit in _NEW.items() if call == "unshare" or name != "CLONE_NEWTIME")
    return [_op(_LOAD, _FIRST), _op(_ANY_BIT, flags, otherwise=1), _refuse(errno.EPERM), _op(_RETURN, _ALLOW)]


def _no_typing() -> list[bytes]:
    program = [_op(_LOAD, _SECOND)]
    for request in _TYPING.values():
        program += [_op(_EQUAL, request, otherwise=1), _refuse(errno.EPERM)]
    return [*program, _op(_RETURN, _ALLOW)]


def _known_families() -> list[bytes]:
    """Let sockets of common families pass, of netlink those alone that list addresses and routes."""
    program = [_op(_LOAD, _FIRST)]
    for family in _FAMILIES.values():
        program += [_op(_EQUAL, family, otherwise=1), _op(_RETURN, _ALLOW)]
    program += [_op(_EQUAL, _NETLINK, otherwise=3), _op(_LOAD, _THIRD)]
    program += [_op(_EQUAL, _NETLINK_ROUTE, otherwise=1), _op(_RETURN, _ALLOW)]
    return [*program, _refuse(errno.EAFNOSUPPORT)]


def _on_call(number: int, then: list[bytes]) -> list[bytes]:
    """Instructions for one call, which end with a return; the number stays loaded for others."""
    return [_op(_EQUAL, number, otherwise=len(then)), *then]


def _refuse(error: int) -> bytes:
    return _op(_RETURN, _ERRNO | error)


def _op(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many to leap over."""
    return struct.pack("HBBI", code, then, otherwise, value)
