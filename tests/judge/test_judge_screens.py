"""Pictures of a turn before the llm judge, over real HTTP: which are sent, how large, and to whom they are not."""

import base64
import io
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_helpers import Scripted, judged_turn, pictures_of
from PIL import Image

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge import screens
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.screens import collect_screens, fit_picture
from clawrl_trl.judge.turn import JudgedTurn


def draw(color: int, kind: str = "PNG", side: int = 8) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (side, side), (color, 0, 0)).save(written, kind)
    return written.getvalue()


def url_of(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def show(*urls: str, text: str = "look") -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


def turn_with(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> JudgedTurn:
    turn = judged_turn([("tool", message) for message in after])
    return JudgedTurn(**{**vars(turn), "messages": tuple(before)})


BEFORE, AFTER = url_of(draw(1)), url_of(draw(2))
STEP = turn_with([show(BEFORE, text="press it")], [{"role": "tool", "content": "done"}, show(AFTER)])


async def ask(script: Scripted, *steps: JudgedTurn, **options: Any) -> list[float | None]:
    async with EngineClient(script.base_url, timeout=10) as client:
        judge = LLMJudge(client, model="m", **options)
        return [(await judge.judge(step)).score for step in steps]


async def test_the_judge_sees_the_screens_before_and_after(script: Scripted) -> None:
    assert await ask(script, STEP) == [1]
    for body in script.chats():
        assert pictures_of(body) == [BEFORE, AFTER]
        texts = [part["text"] for part in body["messages"][1]["content"] if part["type"] == "text"]
        mark = body["messages"][0]["content"].rpartition("the mark ")[2].rstrip(".")
        assert "press it" in texts[0] and all(mark in text for text in texts)
        assert "picture 1 of 2" in texts[1] and "before the reply" in texts[1]
        assert "picture 2 of 2" in texts[2] and "what came next" in texts[2]
        assert texts[-1].endswith("Judge the reply.")


async def test_a_turn_without_pictures_is_asked_in_plain_text(script: Scripted) -> None:
    await ask(script, judged_turn("ok"))
    assert all(isinstance(body["messages"][1]["content"], str) for body in script.chats())


async def test_a_server_without_pictures_gets_the_texts_and_is_not_sent_them_again(script: Scripted) -> None:
    script.most_pictures = 0
    assert await ask(script, STEP, STEP, votes=1) == [1, 1]
    counts = [len(pictures_of(body)) for body in script.chats()]
    assert counts == [2, 2, 1, 1, 0, 0], "each with and without a schema, then the texts; the second turn at once"


async def test_a_server_that_takes_one_picture_gets_the_last(script: Scripted) -> None:
    script.most_pictures = 1
    assert await ask(script, STEP, votes=1) == [1]
    assert pictures_of(script.chats()[-1]) == [AFTER]


@pytest.mark.parametrize("refusal", [(500, "a fault"), (400, "longer than the maximum context length")])
async def test_a_fault_or_a_long_prompt_is_no_reason_to_leave_pictures_out_for_good(
    script: Scripted, refusal: tuple[int, str]
) -> None:
    script.most_pictures, script.picture_refusal = 0, refusal
    async with EngineClient(script.base_url, timeout=10) as client:
        judge = LLMJudge(client, model="m", votes=1)
        assert (await judge.judge(STEP)).score == 1
        script.most_pictures = 2
        assert (await judge.judge(STEP)).score == 1
    assert pictures_of(script.chats()[-1]) == [BEFORE, AFTER]


async def test_a_server_without_a_schema_is_sent_pictures(script: Scripted) -> None:
    script.structured = False
    assert await ask(script, STEP, STEP, votes=1) == [1, 1]
    assert [len(pictures_of(body)) for body in script.chats()] == [2, 2, 2]


def test_the_newest_are_shown_and_no_more_than_a_few() -> None:
    urls = [url_of(draw(number)) for number in range(10)]
    shown = collect_screens(turn_with([show(*urls[:3]), show(*urls[3:5])], [show(urls[5]), show(urls[6], urls[7])]))
    assert [screen.part["image_url"]["url"] for screen in shown] == [urls[3], urls[4], urls[6], urls[7]]


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "http://127.0.0.1:9/a.png",
        "file:///etc/passwd",
        "../../../etc/passwd",
        "/etc/passwd",
        "screenshots/s/1.png",
        "data:image/png,plain",
        url_of(b"<svg onload=alert(1)>", "image/svg+xml"),
        url_of(b"root:x:0:0", "image/png"),
        "data:image/png;base64,!!!",
        "",
    ],
)
def test_only_pictures_that_came_along_are_shown(url: str) -> None:
    assert collect_screens(turn_with([show(url)], [show(url)])) == []


@pytest.mark.parametrize(("kind", "named"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp"), ("GIF", "gif")])
def test_the_kind_is_that_of_the_file(kind: str, named: str) -> None:
    (shown,) = collect_screens(turn_with([show(url_of(draw(3, kind), "image/other"))], []))
    assert shown.part["image_url"]["url"] == url_of(draw(3, kind), f"image/{named}")


def test_a_large_picture_is_made_smaller_and_a_huge_or_broken_one_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.frombytes("RGB", (1600, 1000), random.Random(1).randbytes(1600 * 1000 * 3))
    written = io.BytesIO()
    noise.save(written, "PNG")
    fitted = fit_picture(written.getvalue())
    assert fitted is not None and fitted[0] == "image/jpeg" and len(fitted[1]) <= screens.MAX_BYTES
    assert Image.open(io.BytesIO(fitted[1])).size == (1280, 800)
    assert fit_picture(written.getvalue()[:3_000_000]) is None
    monkeypatch.setattr(screens, "MAX_PIXELS", 1000)
    assert fit_picture(written.getvalue()) is None


@given(st.binary(max_size=64))
def test_any_bytes_are_a_picture_or_none(content: bytes) -> None:
    assert fit_picture(content) is None or screens.find_kind(content) is not None
