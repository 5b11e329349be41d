"""Texts that begin something again and again and never end it: placing them takes time in proportion to their length.

With a pattern that looks at the rest of the text from each beginning, each of these takes minutes.
"""

import pytest
from session_clients import QUEUED, Gateway, Plain

from clawrl_trl.gateway.sessions.digest import comparable_text
from clawrl_trl.gateway.sessions.reading import read

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    "text",
    [
        "hi\nRuntime: agent=main " + "; session=x " * 200_000,
        "hi\nRuntime: agent=main | session=" + " " * 1_000_000,
        "[Request interrupted by user" * 100_000,
        "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>x<<<END_OPENCLAW_INTERNAL_CONTEXT>>>" + "\n" * 1_000_000 + "x",
        "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>x<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
        + "OpenClaw runtime context" * 100_000,
        "### Task:" + "\n" * 500_000 + "x",
        "[Fri 2026-11-20 10:05]" * 500_000 + "hi",
        QUEUED + "x\n\n" * 500_000,
    ],
    ids=["sessions", "spaces", "interrupted", "lines", "contexts", "task", "stamps", "paragraphs"],
)
def test_a_users_text(text: str) -> None:
    placed, _ = Plain(Gateway()).chat(text, "Yes.")
    assert placed.provenance == ["owner"]


def test_a_system_prompt() -> None:
    messages = [{"role": "system", "content": "x" + "\n" * 3990 + "x"}, {"role": "user", "content": "hi"}]
    gateway = Gateway()
    assert {gateway.ask({"messages": messages}).kind for _ in range(50)} == {"main"}


def test_thoughts_that_nothing_closes() -> None:
    assert comparable_text({"content": "<think>" * 300_000}) == b"<think>" * 300_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>a</think>b", b"b"),
        ("a<THINK>b</Think><think></think> c", b"ac"),
        ("a<think>b<think>c</think>d</think>e", b"ad</think>e"),
        ("<think>a</think></think>b<think>c", b"</think>b<think>c"),
    ],
)
def test_thoughts_are_cut(text: str, said: bytes) -> None:
    assert comparable_text({"content": text}) == said


@pytest.mark.parametrize(
    ("line", "key", "name"),
    [
        ("Runtime: agent=a | session=k:1 | sessionId=7 | x", "k:1", "7"),
        ("Runtime: agent=a | session=k \t| session=l | sessionId=7", "k", "7"),
        ("Runtime: agent=a | sessionId=7 | session=k | x", "", "7"),
        ("Runtime: agent=a | sessionId=7 | session=k", "", "7"),
        ("Runtime: agent=a | session=k | n=1", "", None),
    ],
)
def test_the_clients_session(line: str, key: str, name: str | None) -> None:
    reading = read([{"role": "user", "content": f"hi\n{line}"}])
    assert (reading.client_key, reading.client_session) == (key, name)
