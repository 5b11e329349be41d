"""A small OpenAI-compatible server of scripted replies, for what a real model can't be made to do on demand."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BOLD = "**Step 1:** Tom has 5 apples.\n**Step 2:** 5 + 7 = 12.\n\n**Final answer:** 12"
PLAIN = "Tom has 5 apples. He buys 7 more, so 5 + 7 = 12. The answer is 12."


class ScriptedServer:
    """Answers chat completions with `script(messages, number)`: a text, a message, an HTTP status that is an error, or
    such a status and what the error says.

    Other requests are answered by `script(None, number)`.

    Attributes:
        seen (`list[dict]`): Body and headers of each request, in order of arrival.
    """

    def __init__(self, script: Callable[[list[dict[str, str]], int], Any], port: int = 0) -> None:
        self.script = script
        self.seen: list[dict[str, Any]] = []
        self.arrived = threading.Condition()
        outer = self

        class Handler(_Handler):
            server_state = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= count, 60)


class _Handler(BaseHTTPRequestHandler):
    server_state: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        self._send(200, {"status": "ok"})

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.arrived:
            headers = {k.lower(): v for k, v in self.headers.items()}
            state.seen.append({"path": self.path, "body": body, "headers": headers})
            number = len(state.seen)
            state.arrived.notify_all()
        reply = state.script(body.get("messages"), number)
        if isinstance(reply, int | tuple):
            status, error_text = reply if isinstance(reply, tuple) else (reply, "no")
            self._send(status, {"error": {"message": error_text, "type": "server_error", "param": None, "code": None}})
        elif "messages" not in body:
            self._send(200, {"said": reply})
        elif body.get("stream"):
            self._stream(reply)
        else:
            message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
            self._send(200, _completion("chat.completion", {"message": message, "finish_reason": "stop"}))

    def _send(self, status: int, content: dict[str, Any]) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("X-Clawrl-Policy-Version", "3")
        self.send_header("X-Clawrl-Turn-Id", f"turn_{len(self.server_state.seen)}")
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, reply: str) -> None:
        """Word by word; a reply that ends in "…" is cut off without an end."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Clawrl-Policy-Version", "3")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in reply.split(" "):
            self._event({"delta": {"content": word + " "}, "finish_reason": None})
        if not reply.endswith("…"):
            self._event({"delta": {}, "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, choice: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(_completion('chat.completion.chunk', choice))}\n\n".encode())
        self.wfile.flush()


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "object": kind, "created": 0, "model": "clawrl", "choices": [{"index": 0, **choice}]}


def obedient(messages: list[dict[str, str]], number: int) -> str:
    """Bold at first, plain once the user has objected."""
    return PLAIN if len(messages) > 1 else BOLD


def user_says(text: str, mood: str = "patient", satisfied: bool = False) -> str:
    """The answer of a model that plays a user."""
    return json.dumps({"text": text, "mood": mood, "satisfied": satisfied})
