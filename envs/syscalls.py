"""What the kernel refuses to a sandboxed process, beyond what its namespaces and missing rights keep from it.

A seccomp filter (BPF) for bubblewrap: no sockets but those of a local machine and of the internet (a `vsock` would
reach the host of a virtual machine past any network namespace), no System V memory and queues, which no limit counts,
no mounts (in namespaces of its own a process may mount a tmpfs, which no limit counts either), no keyrings, which no
namespace parts, and none of the interfaces of the kernel that are attacked the most.
"""

import errno
import platform
import struct
from functools import cache

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_REFUSED_EVERYWHERE = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "mount_setattr": 442,
}
"""Calls since Linux 5.1 have the same number on every processor."""
_REFUSED = {
    "x86_64": {
        "shmget": 29,
        "msgget": 68,
        "mount": 165,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "mount": 40,
        "msgget": 186,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "bpf": 280,
        "userfaultfd": 282,
    },
}
_FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
_X32 = 0x40000000
_NUMBER, _ARCH, _FIRST = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@cache
def seccomp_filter() -> bytes:
    """The filter of this machine's processor; empty: there is none for it."""
    machine = platform.machine()
    if machine not in _ARCHES:
        return b""
    program = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, _ARCHES[machine], then=1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),  # a program for another processor would have other numbers
        _op(_LOAD, _NUMBER),
        _op(_AT_LEAST, _X32, otherwise=1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in (_REFUSED[machine] | _REFUSED_EVERYWHERE).values():
        program += [_op(_EQUAL, number, otherwise=1), _op(_RETURN, _ERRNO | errno.EPERM)]
    program += [_op(_EQUAL, _SOCKET[machine], then=1), _op(_RETURN, _ALLOW), _op(_LOAD, _FIRST)]
    for family in _FAMILIES.values():
        program += [_op(_EQUAL, family, otherwise=1), _op(_RETURN, _ALLOW)]
    return b"".join([*program, _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)])


def _op(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many to leap over."""
    return struct.pack("HBBI", code, then, otherwise, value)
