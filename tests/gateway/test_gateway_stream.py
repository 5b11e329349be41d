"""Server-sent events survive any cut into chunks and any text."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.http import sse


async def read(chunks: list[bytes]) -> list[bytes]:
    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in sse.iterate_events(source())]


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(raw)) for place in places} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(ends)]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5), st.lists(st.integers(0, 300), max_size=20)
)
def test_round_trip_in_any_chunks(texts: list[str], places: list[int]) -> None:
    raw = b"".join(sse.encode({"text": text}) for text in texts) + sse.DONE
    found = asyncio.run(read(cut(raw, places)))
    assert [json.loads(one)["text"] for one in found[:-1]] == texts
    assert found[-1] == b"[DONE]"


@given(st.text())
def test_an_event_is_one_line_for_every_reader(text: str) -> None:
    line = sse.encode({"text": text})
    assert len(line.decode().splitlines()) == 2


def test_comments_other_fields_and_line_ends() -> None:
    raw = b": ping\r\n\r\nevent: x\r\ndata: 1\r\ndata:2\r\n\r\n\n\ndata: last"
    assert asyncio.run(read([raw])) == [b"1\n2", b"last"]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    with pytest.raises(ValueError, match="no end"):
        asyncio.run(read([b"data: " + b"x" * 200]))
