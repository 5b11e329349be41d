"""Clients' templates, addresses of media, and values that would end in a fault: refused with 400 by every API."""

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Rig, running
from sqlalchemy import func, select

from clawrl_trl.ledger import schema

HELLO = [{"role": "user", "content": "hello"}]
PICTURE = "data:image/png;base64,iVBORw0KGgo="
TEMPLATE = "{% for _ in range(99999) %}{% for _ in range(99999) %}x{% endfor %}{% endfor %}"

APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"messages": HELLO},
    "/v1/embeddings": {"messages": HELLO},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("shared"), allowed_media_domains="pictures.example, cdn.example") as rig:
        yield rig


@pytest.fixture(scope="module")
def http(shared: Rig) -> Iterator[httpx.Client]:
    with shared.client() as client:
        yield client


def refused(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert isinstance(message, str) and message and "\n" not in message
    return message


def reached(rig: Rig) -> int:
    """How many requests the engine has got."""
    return len(rig.engine.requests) + len(rig.engine.others)


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": TEMPLATE},
        {"trust_request_chat_template": True},
        {"chat_template_kwargs": {"chat_template": TEMPLATE}},
        {"chat_template_kwargs": {"chat_template": "x" * 2**20}},
        {"chat_template_kwargs": {"chat_template_kwargs": {"chat_template": TEMPLATE}}},
        {"chat_template_kwargs": {"tokenize": False}},
        {"chat_template_kwargs": {"return_dict": True}},
        {"chat_template_kwargs": {"padding": "max_length"}},
        {"chat_template_kwargs": {"enable_thinking": ["x"]}},
        {"chat_template_kwargs": {"enable_thinking": "x" * 2000}},
        {"chat_template_kwargs": {"enable_thinking": 2**63}},
        {"chat_template_kwargs": {f"name{i}": 1 for i in range(100)}},
        {"chat_template_kwargs": "text"},
    ],
)
def test_no_clients_template_reaches_an_engine(
    shared: Rig, http: httpx.Client, path: str, change: dict[str, Any]
) -> None:
    before = reached(shared)
    message = refused(http.post(path, json={**APIS[path], **change}))
    assert next(iter(change)) in message
    assert reached(shared) == before


def test_variables_of_a_template_reach_the_engine(shared: Rig, http: httpx.Client) -> None:
    variables = {"enable_thinking": True, "effort": "low", "budget": 5, "share": 0.5}
    body = {"messages": HELLO, "chat_template_kwargs": variables, "chat_template": None}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert shared.engine.requests[-1]["chat_template_kwargs"] == variables


def parts(url: str) -> list[tuple[str, dict[str, Any]]]:
    """The places of each API where an address may stand."""
    image = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [source]}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}

    def chat(part: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [part]}]}

    return [
        ("/v1/chat/completions", chat(image)),
        ("/v1/chat/completions", chat({"type": "image_url", "image_url": url})),
        ("/v1/chat/completions", chat({"image_url": url})),
        ("/v1/chat/completions", chat({"type": "input_image", "image_url": url})),
        ("/v1/chat/completions", chat({"type": "video_url", "video_url": {"url": url}})),
        ("/v1/chat/completions", chat({"type": "audio_url", "audio_url": {"url": url}})),
        ("/v1/chat/completions", chat({"type": "image", "image": url})),
        ("/v1/chat/completions", chat({"type": "file", "file": {"file_data": url}})),
        ("/v1/chat/completions", {"messages": [*HELLO, {"role": "tool", "tool_call_id": "a", "content": [image]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                    {
                        "type": "function_call_output",
                        "call_id": "a",
                        "output": [{"type": "input_image", "image_url": url}],
                    },
                ]
            },
        ),
        ("/v1/messages", chat(source) | {"max_tokens": 5}),
        ("/v1/messages", {"messages": [*HELLO, use, {"role": "user", "content": [result]}], "max_tokens": 5}),
        ("/v1/messages/count_tokens", chat(source)),
        ("/tokenize", chat(image)),
        ("/v1/embeddings", chat(image)),
        ("/v1/embeddings", {"input": [image]}),
        ("/v1/score", {"queries": "x", "documents": {"content": [image]}}),
    ]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/secret.png",
        "https://elsewhere.example/cat.png",
        "HTTPS://elsewhere.example/cat.png",
        "https://pictures.example.evil.example/cat.png",
        "https://sub.pictures.example/cat.png",
        "https://pictures.example@evil.example/cat.png",
        "https://evil.example\\@pictures.example/cat.png",
        "https://pictures.example:443@evil.example/",
        "https://evil.example#@pictures.example/",
        " https://evil.example/cat.png",
        "https://pictures.example/a b",
        "http://[::1]/cat.png",
        "file:///etc/passwd",
        "ftp://pictures.example/cat.png",
        "gopher://pictures.example/",
        "//evil.example/cat.png",
    ],
)
def test_no_address_is_fetched_that_nobody_allowed(shared: Rig, http: httpx.Client, url: str) -> None:
    before = reached(shared)
    for path, body in parts(url):
        assert "--allowed_media_domains" in refused(http.post(path, json=body)), (path, body)
    assert reached(shared) == before


@pytest.mark.parametrize("url", [PICTURE, "https://pictures.example/cat.png?a=b", "http://CDN.example:8080/x"])
def test_pictures_that_come_along_or_are_allowed_reach_the_engine(http: httpx.Client, url: str) -> None:
    for path, body in parts(url):
        if path not in ("/tokenize", "/v1/embeddings", "/v1/score", "/v1/messages/count_tokens"):
            answer = http.post(path, json=body)
            assert answer.status_code == 200 or "file" in str(body), (path, answer.text)


def test_no_domain_is_allowed_by_default(rig: Rig) -> None:
    with rig.client() as http:
        for path, body in parts("https://pictures.example/cat.png"):
            refused(http.post(path, json=body))
    assert not rig.turns()


def test_addresses_in_texts_arguments_and_tools_are_no_media(http: httpx.Client) -> None:
    link = "https://elsewhere.example/cat.png"
    call = {"id": "a", "type": "function", "function": {"name": "open", "arguments": f'{{"url": "{link}"}}'}}
    tool = {"type": "function", "function": {"name": "open", "parameters": {"image_url": link}}}
    chat = [
        {"role": "user", "content": link},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": link}]},
    ]
    assert http.post("/v1/chat/completions", json={"messages": chat, "tools": [tool]}).status_code == 200
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "open", "input": {"url": link}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": link}]}
    messages = [{"role": "user", "content": [{"type": "text", "text": link}]}, use, result]
    assert http.post("/v1/messages", json={"messages": messages, "max_tokens": 5}).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": {"5": 1e308}},
        {"logit_bias": {"5": 100.1}},
        {"logit_bias": {"5": True}},
        {"logit_bias": [5]},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"temperature": 2.1},
        {"temperature": True},
        {"top_p": True},
        {"top_k": 2**63},
        {"min_tokens": -1},
        {"min_tokens": 2**63},
        {"stop_token_ids": [2**63]},
        {"stop_token_ids": [True]},
        {"max_tokens": True},
        {"seed": True},
        {"ignore_eos": 1},
        {"priority": 2**63},
    ],
)
def test_sampling_is_bounded_for_every_engine(shared: Rig, http: httpx.Client, change: dict[str, Any]) -> None:
    before = reached(shared)
    assert next(iter(change)) in refused(http.post("/v1/chat/completions", json={"messages": HELLO, **change}))
    refused(http.post("/v1/completions", json={"prompt": "hello", **change}))
    assert reached(shared) == before


@pytest.mark.parametrize("role", ["moderator", "User", "", " user", "x" * 65, "ipython"])
def test_unknown_roles_are_refused_and_not_stored(rig: Rig, role: str) -> None:
    with rig.client() as http:
        messages = [*HELLO, {"role": role, "content": "x"}]
        assert "messages.1.role" in refused(http.post("/v1/chat/completions", json={"messages": messages}))
    assert not rig.turns()


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_known_roles_are_served(http: httpx.Client, role: str) -> None:
    body = {"messages": [{"role": role, "content": "x"}, *HELLO]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"score": True},
        {"score": False},
        {"thumbs": True},
        {"outcome": True},
        {"score": 1, "choice_index": 2**63},
        {"score": 1, "choice_index": 2**31},
        {"score": 1, "choice_index": True},
        {"score": 1, "choice_index": -1},
    ],
)
def test_feedback_takes_numbers_for_numbers(rig: Rig, change: dict[str, Any]) -> None:
    with rig.client() as http:
        reply = http.post("/v1/chat/completions", json={"messages": HELLO}).json()
        message = refused(http.post("/v1/feedback", json={"id": reply["id"], **change}))
        assert any(name in message for name in change)
        assert http.post("/v1/feedback", json={"id": reply["id"], "score": 1}).status_code == 200
    with rig.ledger.reader() as tx:
        assert tx.scalar(select(func.count()).select_from(schema.Feedback)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/{}",
        "/v1/responses/{}",
        "/v1/echo?q={}",
        "/v1/{}",
        "/tokenize?q={}",
        "/s/{}/v1/models",
        "/healthz?q={}",
    ],
)
@pytest.mark.parametrize("length", [9_000, 60_000])
def test_a_long_url_is_refused_in_the_apis_shape(http: httpx.Client, path: str, length: int) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = http.request(method, path.format("x" * length))
        assert "longer" in refused(answer, 414)
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert http.get("/v1/models").status_code == 200


def test_a_url_over_64_kb_is_no_fault_of_the_gateway(http: httpx.Client) -> None:
    for path in ("/v1/models/{}", "/v1/responses/{}", "/v1/echo?q={}", "/v1/{}", "/s/{}/v1/models"):
        for length in (65_000, 70_000, 200_000):  # httpx itself sends no such URL
            connection = HTTPConnection(http.base_url.host, http.base_url.port or 0, timeout=30)
            connection.request("GET", path.format("x" * length))
            assert connection.getresponse().status in (400, 414)
            connection.close()
    assert http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/a%00b", "/v1/responses/%00", "/v1/%00", "/%00"])
def test_no_nul_in_a_url(http: httpx.Client, path: str) -> None:
    refused(http.get(path))


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON",
        "APPLICATION/JSON; charset=utf-8",
        "application/json;x=y",
        "application/vnd.a+json",
    ],
)
def test_json_is_json_however_it_is_written(shared: Rig, http: httpx.Client, kind: str) -> None:
    body = b'{"model": "clawrl", "input": "x"}'
    assert http.post("/v1/echo", content=body, headers={"content-type": kind}).status_code == 201
    assert shared.engine.others[-1][2] == b'{"model": "base", "input": "x"}'
    hostile = b'{"model": "clawrl", "chat_template": "x"}'
    refused(http.post("/v1/echo", content=hostile, headers={"content-type": kind}))


def test_bytes_that_are_no_json_pass_as_they_are(shared: Rig, http: httpx.Client) -> None:
    raw = b"\x00\xff{"
    assert http.post("/v1/echo", content=raw, headers={"content-type": "application/octet-stream"}).status_code == 201
    assert shared.engine.others[-1][2] == raw


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
@pytest.mark.parametrize("path", [*APIS, "/v1/completions", "/v1/feedback", "/v1/episodes"])
def test_json_is_utf_8(http: httpx.Client, path: str, encoding: str) -> None:
    body = '{"messages": [{"role": "user", "content": "\xe9"}], "max_tokens": 5, "input": "\xe9"}'.encode(encoding)
    refused(http.post(path, content=body, headers={"content-type": "application/json"}))


def test_of_two_equal_keys_the_last_counts_everywhere(shared: Rig, http: httpx.Client) -> None:
    raw = b'{"chat_template": null, "model": "nope", "model": "clawrl", "prompt": "a", "prompt": "b"}'
    assert http.post("/v1/echo", content=raw, headers={"content-type": "application/json"}).status_code == 201
    assert shared.engine.others[-1][2] == b'{"chat_template": null, "model": "base", "prompt": "b"}'
    raw = b'{"chat_template": null, "chat_template": "x"}'
    refused(http.post("/v1/echo", content=raw, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"X-Session-Id": "x" * 600}, {}),
        ({"X-Group-Id": "x" * 600}, {}),
        ({}, {"session_id": "x" * 600}),
        ({}, {"session_id": 10**600}),
        ({}, {"metadata": {"session_id": "x" * 600}}),
    ],
)
def test_names_fit_a_databases_index(rig: Rig, headers: dict[str, str], body: dict[str, Any]) -> None:
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, **body}, headers=headers)
        assert "512" in refused(answer)
        assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    assert len(rig.turns()) == 1


def test_a_picture_that_is_no_base64_is_recorded_as_it_is(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,\xe9\xe9"}}
    with running(tmp_path) as rig, rig.client() as http:
        body = {"messages": [{"role": "user", "content": [part]}]}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert not rig.turn().trainable
