"""A folder served on the loopback address, for pages that must come from somewhere."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clawrl_trl.envs.agent import WorldBroken


class FileServer:
    """Serves a folder until it is closed.

    Args:
        folder (`Path`): The folder; nothing outside it is served.

    Examples:
        >>> with FileServer(Path("pages")) as server:
        ...     server.url("index.html")
    """

    def __init__(self, folder: Path) -> None:
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, directory=str(folder.resolve())))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="files", daemon=True
        )
        self._thread.start()

    def url(self, path: str) -> str:
        """The address of a file."""
        return f"http://127.0.0.1:{self._server.server_port}/{path}"

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

    def translate_path(self, path: str) -> str:
        found = Path(super().translate_path(path)).resolve()
        inside = found.is_relative_to(Path(self.directory).resolve())
        return str(found if inside else Path(self.directory) / "nothing-outside")
