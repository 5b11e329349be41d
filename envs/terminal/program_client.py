"""Client that stands in for a program in the sandbox of the tests, and has it run where the tests can't be seen.

Linked as `program` (`program CMD ARG...`) and under the names of interpreters, it passes the command and its own
standard streams to the server of `clawrl_trl.envs.terminal.program`, and ends with the command's exit code. It imports
nothing of this package and as little as it can, because it starts for each command.
"""

import _socket
import os
import struct
import sys


def main() -> None:
    """Run the command that is given by this program's name and arguments."""
    folder, name = os.path.split(sys.argv[0])
    argv = sys.argv[1:] if name == "program" else [name, *sys.argv[1:]]
    cwd = os.getcwd()  # noqa: PTH109  (pathlib takes longer to load than all the rest)
    env = [f"{name}={value}" for name, value in os.environ.items()]
    request = os.fsencode("\0".join([cwd, str(len(argv)), *argv, *env]))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(f"{folder}/../socket")
    streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))
    server.sendmsg([struct.pack("!Q", len(request))], [streams])
    server.sendall(request)
    reply = server.recv(4)
    # 125, as `env` and `timeout` have it, for a command that could not be run.
    sys.exit(struct.unpack("!i", reply)[0] & 0xFF if len(reply) == 4 else 125)


if __name__ == "__main__":
    main()
