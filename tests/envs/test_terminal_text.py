"""The text in a terminal's output."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.envs.terminal.text import TerminalText, resolve

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.sampled_from(
            [b"\x1bP", b"\x1b]0;", b"\x1b\\", b"\x9c", b"\xc2\x90", b"\x1b[31", b"m", b"\x07", b"\r", b"\b", b"\n"]
        ),
        st.text(max_size=8).map(lambda text: text.encode(errors="replace")),
    ),
    max_size=20,
)
PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t"))


def read(*pieces: bytes) -> str:
    text = TerminalText()
    return resolve("".join(map(text.feed, pieces)))


@given(PIECES)
def test_no_control_character_is_left(pieces: list[bytes]) -> None:
    assert not CONTROLS.search(read(*pieces))


@given(PIECES)
def test_it_does_not_matter_how_it_comes_in_pieces(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert read(*pieces) == read(data) == read(*(data[place : place + 1] for place in range(len(data))))


@given(PRINTABLE)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert read(text.encode()) == text


@given(PRINTABLE, PRINTABLE)
def test_sequences_go_and_the_text_around_them_stays(before: str, after: str) -> None:
    for sequence in (b"\x1b[1;31m", b"\x1bP1$r0m\x1b\\", b"\x1b]8;;http://a\x07", b"\xc2\x9b0m", b"\x9b0m", b"\x1b(B"):
        assert read(before.encode() + sequence + after.encode()) == before + after


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\x1bPq#0;2;0;0;0#0~~\x1b\\b", "ab"),  # a picture (DCS)
        (b"a\x1bP1$r0m\x9cb", "ab"),
        (b"a\xc2\x90q\xc2\x9cb", "ab"),
        (b"a\x9d0;title\x07b", "ab"),
        (b"a\x1b_Gf=24;AAAA\x1b\\b\x1b^pm\x1b\\c\x1bXsos\x1b\\d", "abcd"),
        (b"\x1bktitle\x1b\\a", "a"),
        (b"a\x1b]0;never ended\nb", "a\nb"),
        (b"a\x1bP\x1b[31mb", "ab"),
        (b"a\x1bPx\x18b", "ab"),
        (b"a\x85b\x84c\xc2\x85d", "abcd"),
        (b"\x1b[38;5;1mred\x1b[0m\x1b[2K\x1b7\x1b#8\x1b(B.", "red."),
        (b"\x1b[\xe6\xbc\xa2", "\N{CJK UNIFIED IDEOGRAPH-6F22}"),
        (b"10%\r20%\r30%\r\nok\r\r\n", "30%\nok\n"),
        (b"N\bNA\bAME _\bx", "NAME x"),
        (b"|\b/\b-\b", "-"),
        (b"a\x00\x01\x07b\x7fc\x0bd", "abc\nd"),
        (b"\xffcaf\xe9", "\N{REPLACEMENT CHARACTER}caf"),
    ],
)
def test_what_a_person_would_see(data: bytes, shown: str) -> None:
    assert read(data) == shown


def test_an_unfinished_sequence_is_forgotten() -> None:
    text = TerminalText()
    assert text.feed(b"a\x1bPmore") == "a"
    text.reset()
    assert text.feed(b"more") == "more"
