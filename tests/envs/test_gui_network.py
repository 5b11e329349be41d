"""What a page of a GUI environment reaches: its own files, and no other listener of this machine."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawrl_trl.envs.gui.browser_pool import BACKENDS
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.tasks import WebTask

pytestmark = pytest.mark.browser


class Listener:
    """Every connection and every datagram that comes to a port of this machine, over IPv4 and IPv6."""

    def __init__(self) -> None:
        self.came: list[str] = []
        first = socket.create_server(("127.0.0.1", 0))
        self.port = first.getsockname()[1]
        self._sockets = [first]
        for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")):
            try:
                kind = socket.SOCK_STREAM if family == socket.AF_INET6 else socket.SOCK_DGRAM
                endpoint = socket.socket(family, kind)
                endpoint.bind((address, self.port))
                if kind == socket.SOCK_STREAM:
                    endpoint.listen()
                self._sockets.append(endpoint)
            except OSError:  # a machine without IPv6
                continue
        for endpoint in self._sockets:
            threading.Thread(target=self._hear, args=(endpoint,), daemon=True).start()

    def _hear(self, endpoint: socket.socket) -> None:
        try:
            while True:
                if endpoint.type == socket.SOCK_DGRAM:
                    self.came.append(f"datagram {endpoint.recv(100)!r}")
                else:
                    connection, _ = endpoint.accept()
                    connection.settimeout(5)
                    self.came.append(f"connection {connection.recv(100)!r}")
                    connection.close()
        except OSError:
            return

    def close(self) -> None:
        for endpoint in self._sockets:
            endpoint.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


ATTACK = """<!doctype html><meta charset=utf-8><title>busy</title><body><script>
const port = %d, hosts = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "2130706433", "a.localhost",
  "[::ffff:127.0.0.1]", "localtest.example"];
const waits = [];
const late = () => new Promise(done => setTimeout(done, 3000));
const within = promise => waits.push(Promise.race([promise.catch(() => 0), late()]));
const loaded = (kind, fields) => within(new Promise(done => {
  const made = Object.assign(document.createElement(kind), fields, {onload: done, onerror: done});
  document.body.append(made);
}));
for (const host of hosts) {
  const url = `http://${host}:${port}/v1/chat/completions`;
  within(fetch(url, {method: "POST", mode: "no-cors", body: "{}"}));
  within(fetch(url));
  loaded("img", {src: url + "?img"});
  loaded("script", {src: url + "?script"});
  loaded("iframe", {src: url + "?iframe"});
  loaded("link", {rel: "stylesheet", href: url + "?css"});
  loaded("link", {rel: "preconnect", href: url});
  within(new Promise(done => { const ws = new WebSocket(`ws://${host}:${port}/`); ws.onopen = ws.onerror = done; }));
  within(new Promise(done => { const es = new EventSource(url); es.onopen = es.onerror = done; }));
  navigator.sendBeacon(url, "{}");
  const form = Object.assign(document.createElement("form"), {method: "post", action: url, target: `f${host}`});
  loaded("iframe", {name: `f${host}`});
  document.body.append(form);
  form.submit();
  if (window.WebTransport) within(new WebTransport(`https://${host}:${port}/`).ready);
}
loaded("iframe", {src: "redirect.html"});
if (navigator.serviceWorker) within(navigator.serviceWorker.register("worker.js"));
within(new Promise(done => { new Worker("worker.js").onmessage = done; }));
for (const urls of [`stun:127.0.0.1:${port}`, `turn:127.0.0.1:${port}?transport=tcp`, `turn:127.0.0.1:${port}`,
                    `turn:localhost:${port}?transport=tcp`, `turn:[::1]:${port}?transport=tcp`]) {
  within((async () => {
    const peer = new RTCPeerConnection({iceServers: [{urls, username: "u", credential: "c"}]});
    peer.createDataChannel("x");
    await peer.setLocalDescription(await peer.createOffer());
    await new Promise(done => {
      peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && done();
    });
  })());
}
Promise.all(waits).then(() => { document.title = "over"; });
</script>"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_page_reaches_no_port_of_this_machine_but_its_files(
    tmp_path: Path, listener: Listener, backend: str
) -> None:
    (tmp_path / "page.html").write_text(ATTACK % listener.port)
    (tmp_path / "redirect.html").write_text(
        f"<meta http-equiv=refresh content='0; url=http://127.0.0.1:{listener.port}/refreshed'>"
    )
    (tmp_path / "worker.js").write_text(
        f"fetch('http://127.0.0.1:{listener.port}/worker', {{method: 'POST', mode: 'no-cors'}})"
        ".catch(() => 0).then(() => self.postMessage && postMessage(1));"
    )
    task = WebTask("one", tmp_path, "page.html", "Go.", ready="document.title === 'over'", checks=("false",))
    env = GUIEnv([task], backend=backend)  # type: ignore[arg-type]
    try:
        state = env.reset()
        assert not state["dropped"], state["reason"]
    finally:
        env.close()
    assert listener.came == []
