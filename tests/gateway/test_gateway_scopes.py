"""Keys, scopes, owners, feedback, and what is forwarded to whom."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import ENGINE_KEY, Rig, running

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.gateway.auth import Keys, fingerprint
from clawrl_trl.ledger import schema, turns

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
KEYS = Keys(chat=("alice-key", "bob-key"), feedback=("fb-key",), admin=("admin-key",))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("keyed"), keys=KEYS) as rig:
        yield rig


def unauthorized(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_each_scope_has_its_key(keyed: Rig) -> None:
    asks: list[tuple[str, str, Any, set[str]]] = [
        ("POST", CHAT, {"messages": HELLO}, {"alice-key", "bob-key"}),
        ("GET", "/v1/models", None, {"alice-key", "bob-key"}),
        ("POST", "/v1/echo", {}, {"alice-key", "bob-key"}),
        ("GET", "/v1/admin/status", None, {"admin-key"}),
        ("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}, {"admin-key"}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": "x"}, {"admin-key"}),
    ]
    with keyed.client() as http:
        for method, path, body, allowed in asks:
            for key in ("alice-key", "bob-key", "fb-key", "admin-key", "wrong", "alice-ke", "ÿ"):
                answer = http.request(method, path, json=body, headers={b"authorization": f"Bearer {key}".encode()})  # type: ignore[dict-item]
                if key in allowed:
                    assert answer.is_success, (path, key, answer.text)
                else:
                    unauthorized(answer)
            unauthorized(http.request(method, path, json=body))
            unauthorized(http.request(method, path, json=body, headers={"Authorization": "Basic alice-key"}))
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 200


def test_a_refused_request_is_not_read_or_forwarded(keyed: Rig) -> None:
    before = len(keyed.engine.requests)
    with keyed.client() as http:
        unauthorized(http.post(CHAT, content=b"{nonsense"))
    assert len(keyed.engine.requests) == before


def test_owners_never_join(keyed: Rig) -> None:
    ids = []
    with keyed.client() as http:
        for key in ("alice-key", "bob-key"):
            headers = {**bearer(key), "X-Session-Id": "same", "X-Turn-Type": "main"}
            ids.append(http.post(CHAT, json={"messages": HELLO}, headers=headers).headers["x-clawrl-turn-id"])
    with keyed.ledger.reader() as tx:
        one, two = (turns.get(tx, name) for name in ids)
        assert one is not None and two is not None and one.session_id != two.session_id
        owners = {tx.get_one(schema.Session, turn.session_id).owner for turn in (one, two)}
    assert owners == {fingerprint("alice-key"), fingerprint("bob-key")}


def rate(http: httpx.Client, key: str, **body: Any) -> httpx.Response:
    return http.post("/v1/feedback", json=body, headers=bearer(key))


def test_feedback_key_may_rate_anybodys_turn(keyed: Rig) -> None:
    with keyed.client() as http:
        asked = http.post(CHAT, json={"messages": HELLO}, headers=bearer("alice-key"))
        turn_id = asked.headers["x-clawrl-turn-id"]
        unauthorized(rate(http, "alice-key", turn_id=turn_id, score=1))
        answer = rate(http, "fb-key", turn_id=turn_id, score=1)
        assert answer.status_code == 200 and answer.json()["turn_id"] == turn_id
    with keyed.ledger.reader() as tx:
        (row,) = turns.feedback_of(tx, turn_id)
        assert (row.kind, row.value) == ("thumbs", 1.0)


def test_without_a_feedback_key_the_chat_key_rates_its_own(tmp_path: Path) -> None:
    with running(tmp_path, keys=Keys(chat=("alice-key", "bob-key"))) as rig, rig.client() as http:
        asked = http.post(CHAT, json={"messages": HELLO}, headers=bearer("alice-key"))
        completion = asked.json()["id"]
        theirs = rate(http, "bob-key", completion_id=completion, score=-1)
        assert theirs.status_code == 404 and theirs.json()["error"]["code"] == "turn_not_found"
        assert rate(http, "alice-key", completion_id=completion, score=-1).status_code == 200
        assert http.get("/v1/admin/status", headers=bearer("alice-key")).status_code == 403


def test_feedback_kinds(rig: Rig) -> None:
    with rig.client() as http:
        turn_id = http.post(CHAT, json={"messages": HELLO}).headers["x-clawrl-turn-id"]
        said = {"id": turn_id, "thumbs": "down", "text": "too long", "correction": "Hi!", "outcome": -0.5}
        answer = http.post("/v1/feedback", json=said)
        assert answer.status_code == 200
        assert answer.json()["state"] == "judging"
        assert len(answer.json()["feedback_ids"]) == 4
        for bad in ({"id": turn_id}, {"score": 1}, {"id": turn_id, "score": 0}, {"id": turn_id, "score": 2}):
            assert http.post("/v1/feedback", json=bad).status_code == 400
        assert http.post("/v1/feedback", json={"id": turn_id, "scor": 1}).status_code == 400
        both = {"id": turn_id, "turn_id": turn_id, "score": 1}
        assert http.post("/v1/feedback", json=both).status_code == 400
        assert http.post("/v1/feedback", json={"id": "turn_none", "score": 1}).status_code == 404
    with rig.ledger.reader() as tx:
        stored = {(row.kind, row.value, row.text) for row in turns.feedback_of(tx, turn_id)}
    assert stored == {
        ("thumbs", -1.0, None),
        ("text", None, "too long"),
        ("correction", None, "Hi!"),
        ("outcome", -0.5, None),
    }


def test_admin_without_any_key_is_for_this_machine(rig: Rig) -> None:
    with rig.client() as http:
        http.post(CHAT, json={"messages": HELLO})
        status = http.get("/v1/admin/status").json()
    assert status["turns"]["awaiting_next_state"] == 1
    assert status["sessions"] == 1 and status["serving"] == 0 and status["in_flight"] == 0
    assert status["policies"] == [{"version": 0, "state": "serving", "kind": "base", "parent": None}]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:30000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1"},
        {"Host": "localhost:1", "Origin": "http://localhost:2"},
        {"Host": "localhost:1", "Origin": "http://127.0.0.1:1"},
        {"Host": "localhost:1", "Origin": "https://localhost:1"},
        {"Host": "localhost:1", "Origin": "http://localhost:1 http://localhost:2"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "[broken"},
    ],
)
def test_browsers_on_other_pages_are_refused_without_a_key(rig: Rig, headers: dict[str, str]) -> None:
    with rig.client() as http:
        for path in ("/v1/models", "/v1/admin/status", "/s/x/v1/models"):
            answer = http.get(path, headers=headers)
            assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:1"},
        {"Host": "[::1]:1"},
        {"Host": "localhost:1", "Origin": "http://localhost:1", "Sec-Fetch-Site": "same-origin"},
        {"Host": "[::1]:1", "Origin": "http://[::1]:1"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_its_own_pages_and_clients_that_are_no_browser_are_served(rig: Rig, headers: dict[str, str]) -> None:
    with rig.client() as http:
        assert http.get("/v1/models", headers=headers).status_code == 200


def test_pages_of_listed_origins_are_served(tmp_path: Path) -> None:
    with (
        running(tmp_path, allowed_origins="http://localhost:3000, https://chat.example/") as rig,
        rig.client() as http,
    ):
        for origin in ("http://localhost:3000", "https://chat.example"):
            answer = http.get("/v1/models", headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
            assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == origin
            asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
            assert http.options(CHAT, headers={"Origin": origin} | asked).status_code == 200
        for origin in ("http://localhost:3001", "http://chat.example", "null"):
            assert http.get("/v1/models", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("listed", ["*", "localhost:3000", "http://localhost:3000/app", "ftp://localhost", "null"])
def test_what_is_no_origin_cannot_be_listed(listed: str) -> None:
    with pytest.raises(UserError, match="allowed_origins"):
        ServeSettings(allowed_origins=listed)


def test_with_a_key_any_host_name_is_fine(keyed: Rig) -> None:
    with keyed.client() as http:
        headers = {"Host": "models.example", "Origin": "https://models.example", **bearer("bob-key")}
        assert http.get("/v1/models", headers=headers).status_code == 200


def test_bind_beyond_this_machine_needs_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.5", "example.org"):
        with pytest.raises(UserError, match="CLAWRL_API_KEY"):
            Keys(admin=("a",)).check_bind(host)
        Keys(chat=("a",)).check_bind(host)
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.7"):
        Keys().check_bind(host)


def test_several_chat_keys_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_API_KEY", " one, two ,")
    monkeypatch.delenv("CLAWRL_FEEDBACK_KEY", raising=False)
    monkeypatch.delenv("CLAWRL_ADMIN_KEY", raising=False)
    assert Keys.from_environment() == Keys(chat=("one", "two"))


def test_the_rest_is_forwarded_as_it_is(rig: Rig) -> None:
    with rig.client() as http:
        raw = bytes(range(256))
        headers = {"content-type": "application/octet-stream", "Authorization": "Bearer whatever"}
        answer = http.post("/v1/echo?x=1", content=raw, headers=headers)
        assert answer.status_code == 201 and answer.content == raw and answer.headers["x-engine"] == "yes"
        body = json.dumps({"model": "clawrl", "input": "é"}).encode()
        echoed = http.post("/s/one/v1/echo", content=body, headers={"content-type": "application/json"}).json()
        assert echoed == {"model": "base", "input": "é"}
        missing = http.post("/v1/nothing", json={"model": "clawrl"})
        assert missing.status_code == 404 and missing.json()["error"]["message"] == "Not Found"
        assert http.post("/v1/echo", json={"model": "gpt-9"}).status_code == 404
    assert rig.turns() == []
    assert ENGINE_KEY


@pytest.mark.parametrize("path", [f"{CHAT}/batch", "/s/one/v1/chat/completions/batch", "/v1/completions/render"])
def test_nothing_below_a_captured_endpoint_is_forwarded(rig: Rig, path: str) -> None:
    with rig.client() as http:
        answer = http.post(path, json={"model": "clawrl", "messages": [HELLO, HELLO]})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_url"
    assert "POST" not in [method for method, _, _ in rig.engine.others]


def test_administrative_engine_routes_need_the_admin_scope(keyed: Rig) -> None:
    with keyed.client() as http:
        for name in ("sleep", "pause", "update_weights", "collective_rpc", "load_lora_adapter"):
            unauthorized(http.post(f"/v1/{name}", json={}, headers=bearer("alice-key")))
            unauthorized(http.post(f"/v1/%{ord(name[0]):x}{name[1:]}", json={}, headers=bearer("alice-key")))
