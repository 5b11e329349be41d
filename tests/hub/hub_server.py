"""A server on loopback that speaks the Hub's API as `huggingface_hub` uses it, and keeps every byte it is sent."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWNER = "tester"
TOKEN = "hf_TokenThatOpensTheAccount"
CANARY = "Kanarienvogel"
"""Occurs in each secret of a run folder, and in its path."""
REGULAR_LIMIT = 64 * 1024
"""Size in bytes from which a file goes through LFS, beside those whose suffix says so."""


@dataclass
class Request:
    """A request as it came over the wire, but for the authorization header."""

    method: str
    path: str
    headers: str
    body: bytes


@dataclass
class Repository:
    """Content of a repository: its files, and the files of each commit."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)


class HubServer(ThreadingHTTPServer):
    """The Hub of one user, `tester`.

    Args:
        token: The one token that is let in.
    """

    daemon_threads = True

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[Request] = []
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.refuse_commits = False
        self.lock = threading.Lock()

    def seen(self) -> bytes:
        """Everything that was sent, raw and decoded: request lines, headers, bodies, base64 contents, LFS objects."""
        parts: list[bytes] = []
        for request in self.requests:
            parts += [f"{request.method} {request.path}".encode(), request.headers.encode(), request.body]
            parts += [
                _decode(text) for text in re.findall(rb'"(?:content|sample)": ?"([A-Za-z0-9+/=]*)"', request.body)
            ]
        for repository in self.repositories.values():
            parts += repository.files.values()
        return b"\n".join([*parts, *self.blobs.values()])


def _decode(text: bytes) -> bytes:
    return base64.b64decode(text)


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _serve(self, method: str) -> None:
        body = self._body()
        headers = "\n".join(f"{name}: {value}" for name, value in self.headers.items() if name != "authorization")
        with self.server.lock:
            self.server.requests.append(Request(method, self.path, headers, body))
            status, answer = self._answer(method, self.path.split("?")[0], body)
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(content)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if method == "PUT" and path.startswith("/lfs/"):
            return self._store(path.removeprefix("/lfs/"), body)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if self.headers.get("authorization") != f"Bearer {self.server.token}":
            return 401, {"error": "Invalid credentials"}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": OWNER, "orgs": [], "auth": {"accessToken": {"role": "write"}}}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return 200, self._batch(json.loads(body))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit|revision)/(.+))?", path):
            return self._model(match[1], match[2], body)
        return 404, {"error": "not found"}

    def _store(self, oid: str, body: bytes) -> tuple[int, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "other content"}
        self.server.blobs[oid] = body
        return 200, None

    def _create(self, wish: dict[str, Any]) -> tuple[int, Any]:
        name = f"{wish.get('organization') or OWNER}/{wish['name']}"
        exists = name in self.server.repositories
        if not exists:
            self.server.repositories[name] = Repository(private=wish.get("visibility") == "private")
        return (409 if exists else 200), {"url": f"{self.server.url}/{name}"}

    def _batch(self, wish: dict[str, Any]) -> dict[str, Any]:
        def upload(item: dict[str, Any]) -> dict[str, Any]:
            link = {"href": f"{self.server.url}/lfs/{item['oid']}"}
            return {**item, "authenticated": True, "actions": {"upload": link}}

        return {"transfer": "basic", "objects": [upload(item) for item in wish["objects"]]}

    def _model(self, name: str, action: str | None, body: bytes) -> tuple[int, Any]:
        repository = self.server.repositories.get(name)
        if repository is None:
            return 404, {"error": "Repository not found"}
        if action == "preupload":
            return 200, {"files": [_choose_upload_mode(item) for item in json.loads(body)["files"]]}
        if action == "commit":
            if self.server.refuse_commits:
                return 403, {"error": "You are over your quota"}
            return self._commit(name, repository, body)
        files = [{"rfilename": path} for path in repository.files]
        return 200, {"id": name, "private": repository.private, "siblings": files, "sha": "0" * 40, "tags": []}

    def _commit(self, name: str, repository: Repository, body: bytes) -> tuple[int, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        header, files = lines[0]["value"], {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            else:
                return 400, {"error": f"unexpected {line['key']}"}
        repository.files.update(files)
        repository.commits.append((header["summary"], files))
        return 200, {"success": True, "commitOid": f"{len(repository.commits):040x}", "commitUrl": f"/{name}/commit"}


def _choose_upload_mode(item: dict[str, Any]) -> dict[str, Any]:
    large = item["size"] >= REGULAR_LIMIT or item["path"].endswith((".safetensors", ".bin", ".db", ".pt"))
    return {"path": item["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
