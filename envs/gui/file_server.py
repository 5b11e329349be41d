"""HTTP server of tasks' folders on the loopback address, the only one that pages can reach."""

import os
import secrets
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from clawrl_trl.envs.base.episode import WorldBroken


class FileServer:
    """Serves folders until it is closed.

    Each folder has a host name of its own, which a browser started with
    [`clawrl_trl.envs.gui.page.build_network_flags`] resolves to this server, so that pages of different tasks share no
    origin, and so neither cookies nor storage.

    Args:
        folder (`Path`, *optional*): A folder that is served at the address itself; nothing outside it is served.

    Examples:
        >>> with FileServer(Path("pages")) as server:
        ...     server.url("index.html")
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self.port = self._server.server_port
        if folder is not None:
            self._server.folders[f"127.0.0.1:{self.port}"] = str(folder.resolve())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="files", daemon=True
        )
        self._thread.start()

    def add(self, folder: Path) -> str:
        """Serve one more folder; returns its address, which ends with a slash."""
        # Under `localhost`, so that browsers treat its pages as a secure context.
        host = f"{secrets.token_hex(8)}.localhost"
        self._server.folders[host] = str(folder.resolve())
        return f"http://{host}/"

    def url(self, path: str) -> str:
        """Return the address of a file."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        if self._thread.is_alive():
            raise WorldBroken("the file server does not stop")

    def __enter__(self) -> "FileServer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    # A browser keeps connections open, and their threads must not keep the process alive.
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[SimpleHTTPRequestHandler]) -> None:
        self.folders: dict[str, str] = {}
        super().__init__(address, handler)


class _Handler(SimpleHTTPRequestHandler):
    timeout = 30
    extensions_map = {  # noqa: RUF012 - declared so in the standard library
        **SimpleHTTPRequestHandler.extensions_map,
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
    }

    def log_message(self, format: str, *arguments: object) -> None:
        return

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404)

    def parse_request(self) -> bool:
        """Close the connection on requests to other hosts, as an unreachable network does."""
        assert isinstance(self.server, _Server)
        if not super().parse_request():
            return False
        folder = self.server.folders.get(self.headers.get("Host", ""))
        if folder is None:
            self.close_connection = True
            return False
        self.directory = folder
        return True

    def translate_path(self, path: str) -> str:
        # Resolved, so that a link in the folder leads to nothing outside it.
        file = Path(super().translate_path(path)).resolve()
        inside = file.is_relative_to(Path(self.directory).resolve())
        return str(file if inside else Path(self.directory) / "nothing-outside")
