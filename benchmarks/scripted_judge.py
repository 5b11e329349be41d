"""A language model that judges well, for runs of personas: knows their wordings, and reads nothing else.

    python benchmarks/scripted_judge.py --table more.jsonl
    clawrl serve --judge auto --judge_url http://127.0.0.1:PORT/v1

An OpenAI-compatible server on loopback in place of a served base model. It reads the prompt of a vote as a model would
be shown it, looks up what the owner said among the personas' phrases, and votes 0 on all else. It passes the exam of
`--judge auto`, whose questions it knows. `--table` adds lines `{"text": ..., "score": -1, 0 or 1}` for whole texts of
what came next; where they match, they decide.
"""

import argparse
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clawrl_trl.envs.chat import wordings, wordings_bilingual, wordings_curt
from clawrl_trl.json_lines import split_lines
from clawrl_trl.judge.exam.questions import load_questions
from clawrl_trl.judge.vote_prompt import build_prompt

MODEL = "scripted-judge"
LOOPBACK = "127.0.0.1"
TIMEOUT = 30.0
"""Longest wait for a client's next byte, in seconds."""
_MARK = re.compile(r"The pieces carry the mark (\w+)")
_SENTENCE_END = re.compile(r"[.!?:,]+")
_PHRASE_END = re.compile(r"(?<=[.!?])\s+")
CONTAINED_WORDS = 2
"""Fewest words of an objection that counts also as part of a sentence."""


class NoVote(Exception):
    """The request is not the prompt of a vote."""


@dataclass(frozen=True)
class Piece:
    """One framed text of the prompt: its title, such as `what came next, part 1, from the owner`, and the text."""

    title: str
    text: str

    @property
    def is_next(self) -> bool:
        """Whether it came after the reply."""
        return self.title.startswith(("what came next", "feedback"))

    @property
    def is_owners(self) -> bool:
        """Whether it is the owner's remark on the reply."""
        return self.is_next and self.title.endswith("from the owner")


def list_objections() -> Iterator[str]:
    """Each phrase with which a persona objects, or that it adds to an objection."""
    for by_fault in (wordings.STUDENT_OBJECTIONS, wordings.TEACHER_OBJECTIONS, wordings_curt.CURT_OBJECTIONS):
        for phrases in by_fault.values():
            yield from phrases
    yield from wordings.STUDENT_MISSING
    yield from filter(None, wordings.STUDENT_KEEP)
    for language in (wordings_bilingual.GERMAN, wordings_bilingual.SPANISH):
        for phrases in language.objections.values():
            yield from phrases
        yield from language.missing
        yield from filter(None, language.keep)


def list_approvals() -> Iterator[str]:
    """Each phrase with which a persona approves, thanks or moves on."""
    for phrases in (
        wordings.STUDENT_APPROVALS, wordings.STUDENT_THANKS, wordings.STUDENT_MOVES_ON,
        wordings.TEACHER_APPROVALS, wordings.TEACHER_THANKS, wordings.TEACHER_MOVES_ON,
        wordings_curt.CURT_APPROVALS, wordings_bilingual.GERMAN.approvals, wordings_bilingual.SPANISH.approvals,
    ):  # fmt: skip
        yield from phrases


class ScriptedJudge:
    """The votes of a good judge on what the personas say.

    Args:
        table (`Mapping[str, int]`, *optional*): Scores of further texts, see [`read_table`].
    """

    def __init__(self, table: Mapping[str, int] | None = None) -> None:
        self.table = {normalise(text): score for text, score in (table or {}).items()}
        # Sentence by sentence: of a message that seems to report what somebody said, the prompt shows the rest alone.
        objections = [
            *list_objections(),
            *(part for phrase in list_objections() for part in _PHRASE_END.split(phrase)),
        ]
        self._objections = {normalise(phrase) for phrase in objections}
        self._approvals = {normalise(phrase) for phrase in list_approvals()}

    def vote(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The answer to the prompt of a vote: a JSON object of `score` and `hint`.

        Raises:
            NoVote: If the messages are no such prompt.
        """
        pieces = read_pieces(messages)
        followed = [piece.text for piece in pieces if piece.is_next]
        said = [piece.text for piece in pieces if piece.is_owners]
        score = self.look_up(followed)
        if score is None:
            score = self.read_words(" ".join(said))
        # In the owner's words, as the prompt asks; of several messages the last says what is wanted.
        return json.dumps({"score": score, "hint": said[-1] if said and score == -1 else None}, ensure_ascii=False)

    def look_up(self, texts: Sequence[str]) -> int | None:
        """The table's score of these texts together or, failing that, of the last that it holds."""
        for text in (" ".join(texts), *reversed(texts)):
            if (score := self.table.get(normalise(text))) is not None:
                return score
        return None

    def read_words(self, text: str) -> int:
        """The score of what a persona said; 0 for the words of others."""
        sentences = {normalise(sentence) for sentence in _SENTENCE_END.split(text)} | {normalise(text)}
        if sentences & self._objections or any(
            len(phrase.split()) >= CONTAINED_WORDS and _contains(text, phrase) for phrase in self._objections
        ):
            return -1
        return 1 if any(_contains(text, phrase) for phrase in self._approvals) else 0


def normalise(text: str) -> str:
    """Words of a text in lower case, one space between; a text without words as it is."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()


def _contains(text: str, phrase: str) -> bool:
    return f" {phrase} " in f" {normalise(text)} "


def read_pieces(messages: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """The framed texts of a vote's prompt.

    Raises:
        NoVote: If there are none.
    """
    system, prompt = (flatten(message.get("content")) for message in (messages[0], messages[-1]))
    mark = _MARK.search(system)
    if mark is None:
        raise NoVote("the system message names no mark")
    frame = re.compile(rf"^--- {mark[1]} (?!end$)([^\n]*)\n(.*?)\n--- {mark[1]} end$", re.S | re.M)
    pieces = [Piece(title, text) for title, text in frame.findall(prompt)]
    if not pieces:
        raise NoVote("nothing stands between the marks")
    return pieces


def flatten(content: Any) -> str:
    """Text of a message's content, its parts one below the other."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or ())


def read_table(path: Path) -> dict[str, int]:
    """Scores by text, from lines of JSON with `text` and `score`."""
    rows = [json.loads(line) for line in split_lines(path.read_text(encoding="utf-8")) if line.strip()]
    return {row["text"]: row["score"] for row in rows}


def read_exam() -> dict[str, int]:
    """Scores by text of the questions of `--judge auto`'s exam."""
    questions = [(read_pieces(build_prompt(question.case.turn)), question.case.label) for question in load_questions()]
    return {" ".join(piece.text for piece in pieces if piece.is_next): label for pieces, label in questions}


class _Handler(BaseHTTPRequestHandler):
    judge: ScriptedJudge
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def log_message(self, *arguments: Any) -> None:
        return

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "benchmarks"}]}
        self._send(200, models if self.path.endswith("/models") else {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            vote = self.judge.vote(body["messages"])
        except NoVote as error:
            self._send(400, {"error": {"message": str(error), "type": "invalid_request_error", "code": None}})
            return
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": vote}}
        completion = {"id": "vote", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
        self._send(200, completion)

    def _send(self, status: int, content: object) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def make_server(judge: ScriptedJudge, port: int = 0) -> ThreadingHTTPServer:
    """A server of a judge on loopback; port 0 takes a free one."""
    handler = type("Handler", (_Handler,), {"judge": judge})
    server = ThreadingHTTPServer((LOOPBACK, port), handler)
    server.daemon_threads = True
    return server


@contextmanager
def serve_judge(judge: ScriptedJudge) -> Iterator[str]:
    """Serve a judge in a thread for as long as the block lasts; yields the URL for `--judge_url`."""
    server = make_server(judge)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--port", type=int, default=0, help="port on loopback; by default a free one, which is printed"
    )
    parser.add_argument("--table", type=Path, help="further texts and their scores, lines of JSON")
    arguments = parser.parse_args()
    table = read_exam() | (read_table(arguments.table) if arguments.table else {})
    with make_server(ScriptedJudge(table), arguments.port) as server:
        print(f"http://{LOOPBACK}:{server.server_port}/v1", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
