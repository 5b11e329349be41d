"""Any value in any field of any route: served or refused in the API's shape, and the next chat answers.

A real gateway over the real embedded engine; the fields are those that the official SDKs list beside ours.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_fields import ENGINE_ROUTES, GATEWAY_ROUTES, Route
from gateway_rig import ENGINE_KEY, running, sse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from real_engine import RealEngine

pytestmark = pytest.mark.xdist_group("real engine")

GROUP = 16
NUMBERS = (2**63, 10**30, 0, 1, -1, 2, 128, 129, 2**31 - 1, 2**31, 2**63 - 1, -(2**63) - 1)
FRACTIONS = (0.0, 0.5, -0.5, 1.5, 1e308, -1e308, 1e-300, 5e-324)
TEXTS = (
    "", "x", "user", "auto", "text", "a" * 600, "\0", "\ud800", "\udfff\ud800", "\u202e", "policy-v9", "base",
    "http://127.0.0.1:9/x.png",
    "data:image/png;base64,\xe9", "{{ 1 / 0 }}", "[/bold]", "../..", "1e308", "chat_template",
)  # fmt: skip
scalars = st.one_of(
    st.sampled_from(NUMBERS), st.none(), st.booleans(), st.sampled_from(FRACTIONS), st.sampled_from(TEXTS)
)
keys = st.sampled_from(
    ("type", "role", "content", "text", "name", "id", "url", "image_url", "source", "function", "5", "", "\ud800")
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
bounded = settings(max_examples=2, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))


@pytest.fixture(scope="module")
def gateway(real_engine: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("fields") / "run"
    with running(folder, engine_url=real_engine.url, max_model_len=512) as rig, rig.client() as http:
        http.timeout = httpx.Timeout(60)
        yield http


@pytest.fixture(scope="module")
def engine(real_engine: RealEngine) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {ENGINE_KEY}"}
    with httpx.Client(base_url=real_engine.url, headers=headers, timeout=60, trust_env=False) as http:
        yield http


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    content = json.dumps(body).encode()
    return http.post(path, content=content, headers={"content-type": "application/json"})


def check(answer: httpx.Response, said: object = None) -> None:
    """Served, or refused in the API's shape; a stream has no fault in it either."""
    told = f"{said!r:.500} -> {answer.status_code} {answer.text[:500]}"
    assert answer.status_code < 500, told
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert isinstance(error["message"], str) and error["message"] and "Traceback" not in error["message"], told
        if answer.json().get("type") != "error":  # Anthropic's shape has the other two alone
            assert error.keys() == {"message", "type", "param", "code"}, told
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        for event in sse(answer.text):
            assert "error" not in event or event.get("error") is None, told


def check_alive(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    assert post(http, "/v1/chat/completions", body).status_code == 200


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*here, key)
        yield from paths(item, (*here, key))


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(body)
    inside = result
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return result


def groups(routes: tuple[Route, ...]) -> list[Any]:
    """Every known field of the routes, and every place inside their requests, `GROUP` at a time."""
    cases = []
    for route in routes:
        places = [(name,) for name in route.names] + [path for path in paths(route.body) if len(path) > 1]
        cases += [
            pytest.param(route, places[start : start + GROUP], id=f"{route.path}-{start}")
            for start in range(0, len(places), GROUP)
        ]
    return cases


def try_all(http: httpx.Client, route: Route, places: list[tuple[Any, ...]], data: st.DataObject, model: str) -> None:
    """One value at each place, a request for each."""
    body = route.body | ({"model": model} if "model" in route.body else {})
    for place in places:
        request = changed(body, place, data.draw(values, label=".".join(map(str, place))))
        check(post(http, route.path, request), request)
    check_alive(http, model)


@pytest.mark.slow
@pytest.mark.parametrize(("route", "places"), groups(GATEWAY_ROUTES))
@bounded
@given(data=st.data())
def test_every_field_of_the_gateway(
    gateway: httpx.Client, route: Route, places: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    try_all(gateway, route, places, data, "clawrl")


@pytest.mark.slow
@pytest.mark.parametrize(("route", "places"), groups(ENGINE_ROUTES))
@bounded
@given(data=st.data())
def test_every_field_of_the_embedded_engine(
    engine: httpx.Client, route: Route, places: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    try_all(engine, route, places, data, "base")


@pytest.mark.parametrize("route", GATEWAY_ROUTES, ids=lambda route: route.path)
def test_what_is_varied_is_a_request_that_is_understood(gateway: httpx.Client, route: Route) -> None:
    answer = post(gateway, route.path, route.body)
    assert answer.status_code == 200 or (
        answer.status_code in (400, 404) and route.path.split("/")[-1] in NOTHING_THERE
    )
    check(answer)


NOTHING_THERE = ("feedback", "episodes", "load_lora_adapter", "unload_lora_adapter")
"""Routes that are about something which these tests have not made."""

PATHS = ("/v1/models/{}", "/v1/responses/{}", "/s/{}/v1/models", "/v1/{}", "/v1/admin/{}", "/{}")
HEADERS = (
    "authorization", "x-api-key", "content-type", "content-encoding", "accept", "anthropic-version", "anthropic-beta",
    "x-session-id", "x-session-affinity", "session-id", "x-turn-type", "x-session-done", "x-group-id", "origin",
    "x-forwarded-for", "cookie", "expect",
)  # fmt: skip
header_values = st.sampled_from(
    ("", "x", "a" * 600, "[/bold]x", "main", "true", "gzip", "application/json", "\xe9\xff")
)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_path_query_and_header(gateway: httpx.Client, data: st.DataObject) -> None:
    raw = data.draw(st.binary(max_size=12), label="name")
    name = "".join(f"%{byte:02x}" for byte in raw)
    query = data.draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12), label="query")
    for path in PATHS:
        for method in ("GET", "POST", "DELETE", "PUT", "OPTIONS"):
            url = f"{path.format(name)}?{query.replace('#', '')}"
            check(gateway.request(method, url, content=b"{}" if method == "POST" else None), url)
    body = {"model": "clawrl", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    for header in HEADERS:
        value = data.draw(header_values, label=header)
        headers = [(b"content-type", b"application/json"), (header.encode(), value.encode("latin-1"))]
        for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
            answer = gateway.post(path, content=json.dumps(body).encode(), headers=headers)
            check(answer, (path, header, value))
    check_alive(gateway, "clawrl")


@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(raw=st.binary(max_size=40) | st.sampled_from((b"[" * 5000, b'{"a":' * 500, b'{"a": 1, "a": {}}', b"9" * 5000)))
def test_any_bytes_on_every_route(gateway: httpx.Client, engine: httpx.Client, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    for http, routes in ((gateway, GATEWAY_ROUTES), (engine, ENGINE_ROUTES)):
        for route in routes:
            check(http.post(route.path, content=raw, headers=headers), (route.path, raw))
    check_alive(gateway, "clawrl")
