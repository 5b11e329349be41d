"""Stands in for a program in the sandbox of the tests: has it run where the tests can't be seen.

Linked as `program` (`program CMD ARG...`) and as the names of interpreters, it hands the command with the caller's
standard streams to the server of `clawrl_trl.envs.terminal.program`, and ends as the command does. It needs nothing
of this package, and loads as little as it can, because it runs for each command.
"""

import _socket
import os
import struct
import sys


def main() -> None:
    """Run the command that the name and the arguments say."""
    folder, name = os.path.split(sys.argv[0])
    argv = sys.argv[1:] if name == "program" else [name, *sys.argv[1:]]
    cwd = os.getcwd()  # noqa: PTH109  (pathlib takes longer to load than all the rest)
    env = [f"{name}={value}" for name, value in os.environ.items()]
    question = os.fsencode("\0".join([cwd, str(len(argv)), *argv, *env]))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(f"{folder}/../socket")
    streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))
    server.sendmsg([struct.pack("!Q", len(question))], [streams])
    server.sendall(question)
    answer = server.recv(4)
    sys.exit(struct.unpack("!i", answer)[0] & 0xFF if len(answer) == 4 else 125)


if __name__ == "__main__":
    main()
