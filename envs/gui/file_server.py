"""Folders served on the loopback address, for pages that must come from somewhere."""

import secrets
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clawrl_trl.envs.base.agent import WorldBroken


class FileServer:
    """Serves folders until it is closed.

    Each folder has a host name of its own, which a browser that knows no other way finds here (see
    [`clawrl_trl.envs.gui.page.network_flags`]), so that pages of different tasks share no origin.

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
        host = f"{secrets.token_hex(8)}.localhost"  # a name that browsers hold to be secure
        self._server.folders[host] = str(folder.resolve())
        return f"http://{host}/"

    def url(self, path: str) -> str:
        """The address of a file."""
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

    def __exit__(self, *exception: Any) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self.folders: dict[str, str] = {}
        super().__init__(*arguments)


class _Handler(SimpleHTTPRequestHandler):
    timeout = 30
    extensions_map = {  # noqa: RUF012 - declared so in the standard library
        **SimpleHTTPRequestHandler.extensions_map,
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
    }

    def log_message(self, *arguments: Any) -> None:
        return

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def parse_request(self) -> bool:
        """Hang up on requests to other hosts, which is how an unreachable network looks to a page."""
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
        found = Path(super().translate_path(path)).resolve()
        inside = found.is_relative_to(Path(self.directory).resolve())
        return str(found if inside else Path(self.directory) / "nothing-outside")
