"""A failed call is an objection only where a better one would have gone well."""

import json
from dataclasses import replace

import pytest
from judge_helpers import judged_turn

from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.tools.failure_causes import is_finding, is_infrastructure, opens_with_infrastructure
from clawrl_trl.judge.tools.wanted import is_failure_wanted
from clawrl_trl.judge.turn import JudgedTurn


def turn_of(content: str, command: str = "make", request: str = "Build it.", said: str = "") -> JudgedTurn:
    """A turn whose reply ran a command."""
    arguments = json.dumps({"command": command})
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    turn = judged_turn([("tool", {"role": "tool", "tool_call_id": "call_1", "content": content})])
    response = {"role": "assistant", "content": said, "tool_calls": [call]}
    return replace(turn, messages=({"role": "user", "content": request},), response=response)


INFRASTRUCTURE = [
    "npm error code ETIMEDOUT\nnpm error network request to https://registry.example failed\nExit code: 1",
    "fatal: unable to access 'https://git.example/x.git/': Could not resolve host: git.example\nExit code: 128",
    '{"error": {"code": 429, "message": "Rate limit reached, please retry"}}',
    '{"isError": true, "content": [{"type": "text", "text": "upstream returned 503 Service Unavailable"}]}',
    "psql: error: connection to server at 10.0.0.4 failed: Connection refused\nexit code 2",
    "Traceback (most recent call last):\n  File 'a.py', line 2, in f\nOSError: [Errno 28] No space left on device",
    "Error: 502 Bad Gateway",
    "HTTP 429 Too Many Requests\nRetry-After: 30",
    "cp: error writing '/mnt/backup/a.jpg': No space left on device",
    "ERROR: Could not install packages due to an OSError: Read timed out.",
    "E: Could not get lock /var/lib/dpkg/lock-frontend\nexit code: 100",
    "Get https://registry.example/v2/: net/http: request canceled (Client.Timeout exceeded)\nexit=18",
    "エラー 429: 書き込みの上限に達しました。しばらくしてから再試行してください。",
    "Fehler: Zeitüberschreitung der Anforderung\n[Exit-Code 1]",
    "cp: Fehler beim Schreiben: Auf dem Gerät ist kein Speicherplatz mehr verfügbar\nexit code: 1",
    "Error: el servicio no disponible, inténtelo más tarde\nexit code: 1",
    "操作失败：系统繁忙，请稍后再试\n[退出代码: 1]",
    "HTTP 403 quotaExceeded: the channel's upload quota was reached",
    '{"ok": false, "error": "The free pictures of this month are used up."}',
    "error: monthly API allowance reached",
]


@pytest.mark.parametrize("content", INFRASTRUCTURE)
def test_a_failure_of_the_infrastructure_is_no_objection(content: str) -> None:
    assert is_infrastructure(content)
    assert RulesJudge().decide(turn_of(content)).score is None


CALLS_THAT_WERE_WRONG = [
    "make: *** No rule to make target 'buld'.  Stop.\nExit code: 2",
    "bash: pyton: command not found\nExit code: 127",
    'ERROR:  syntax error at or near "FORM"\nLINE 1: SELECT * FORM users',
    "Failed to start printing.service: Unit printing.service not found.\n[exit 5]",
    "<error>String to replace not found in file.</error>",
    "404: no such camera",
    "Fehler: Empfänger fehlt",
    "Erreur 400 : adresse invalide",
    "error: pathspec 'mian' did not match any file(s) known to git\nExit code: 1",
    "file 503.txt: No such file or directory\nExit code: 1",
    "=== 1 failed, 429 passed in 3.2s ===\nExit code: 1",
]


@pytest.mark.parametrize("content", CALLS_THAT_WERE_WRONG)
def test_a_wrong_call_is_one(content: str) -> None:
    assert RulesJudge().decide(turn_of(content)).score == -1


SEARCHES = ["grep -rn TODO src", "cd app && grep -c x a.txt", "cat a | grep b", "sudo pgrep nginx"]


@pytest.mark.parametrize("command", SEARCHES)
def test_nothing_found_is_a_finding(command: str) -> None:
    assert is_finding(command)
    assert RulesJudge().decide(turn_of("Exit code: 1", command)).score is None
    broken = "grep: srcc: No such file or directory\nExit code: 2"
    assert RulesJudge().decide(turn_of(broken, command)).score == -1


CHECKS = [
    "diff a b",
    "git diff --exit-code",
    "black --check .",
    "systemctl is-active x",
    "nc -zv h 22",
    "test -f x",
    "ssh fs02 id jm",
    "sha256sum -c SUMS",
]


@pytest.mark.parametrize("command", CHECKS)
def test_programs_that_compare_and_check_find(command: str) -> None:
    assert is_finding(command)


OTHERS = ["make test", "python grep.py", "git difftool", "rm x | tee log", "grep x a && make", ""]


@pytest.mark.parametrize("command", OTHERS)
def test_other_programs_fail(command: str) -> None:
    assert not is_finding(command)


WANTED = [
    "Reproduce the crash from issue 12 first.",
    "Write a failing test for the rounding bug and run it.",
    "Make sure the old token is rejected now.",
    "Confirm that port 22 is closed from outside.",
    "Is the legacy endpoint gone?",
    "The second run should fail, please check.",
    "The two failures in test_dates are old and known, leave them.",
    "Members say some links are broken. Tell me which.",
    "Find out where the feed is invalid.",
]


@pytest.mark.parametrize("wish", WANTED)
def test_a_failure_that_was_asked_for_is_no_objection(wish: str) -> None:
    assert is_failure_wanted(wish)
    judgement = RulesJudge().decide(turn_of("1 failed in 0.1s\nExit code: 1", "pytest", wish))
    assert judgement.score is None and judgement.detail["reason"] == "a failure may be what was wanted"
    assert RulesJudge().decide(turn_of("1 passed in 0.1s\nExit code: 0", "pytest", wish)).score == 1


def test_the_reply_may_say_so_itself() -> None:
    said = "First a run without the fix: it should fail."
    assert RulesJudge().decide(turn_of("Exit code: 1", "pytest", said=said)).score is None
    assert RulesJudge().decide(turn_of("Exit code: 1", "pytest")).score == -1


QUESTIONS = [
    "is anything still listening on 8090?",
    "So, has the seat been taken?",
    "seat 14A still free?",
    "find out whether the verifier refuses it",
    "try the old password",
    "The second insert must be stopped by the index, try it.",
    "the ci account shouldn't be able to read secrets, can you check that it can't",
    "existiert der dienst da noch?",
    "Beweise mir, dass negative Mengen abgelehnt werden.",
    "Vérifie que plus personne ne l'utilise",
    "¿sigue abierto el puerto",
    "controlla che il vecchio utente sia sparito",
    "upewnij się, że usługa już nie działa",
    "проверь, что порт закрыт",
    "eski şifre artık çalışmamalı",
    "确认一下旧接口是不是下线了",
    "古いトークンが弾かれるか試して",
    "예전 비밀번호로 로그인이 안 되는지 봐줘",
]


@pytest.mark.parametrize("request_", QUESTIONS)
def test_a_failure_may_be_the_answer_to_what_was_asked(request_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether "it is there" answers such a question is another matter.
    monkeypatch.setattr("clawrl_trl.judge.rules.measure_success", lambda request, result: 1.0)
    assert RulesJudge().decide(turn_of("refused\nExit code: 3", "probe", request_)).score is None
    assert RulesJudge().decide(turn_of("it is there\nExit code: 0", "probe", request_)).score == 1


@pytest.mark.parametrize(
    "output",
    [
        "bash: pyton: command not found",
        "error: unknown flag: --states\nUsage: gh pr list",
        "Msg 102, Level 15\nIncorrect syntax near 'LIMIT'.",
        "NameError: name 'x' is not defined",
        "bash: pyton: Kommando nicht gefunden.",
    ],
)
def test_a_call_that_was_wrong_answers_nothing(output: str) -> None:
    assert RulesJudge().decide(turn_of(f"{output}\nExit code: 1", "x", "is port 22 open?")).score == -1


ORDERS = [
    "what are the slowest jobs?",
    "can you build it?",
    "Which port is it? Build it.",
    "Fix the rounding and make sure the tests pass.",
    "port the build to meson, then verify that it works",
    "the login no longer works, repair it",
    "Move the parser into a package of its own. " * 8 + "Is that all right?",
]


@pytest.mark.parametrize("request_", ORDERS)
def test_a_failure_is_no_answer_to_an_order(request_: str) -> None:
    assert RulesJudge().decide(turn_of("it broke\nExit code: 3", "probe", request_)).score == -1


def test_the_question_may_stand_before_a_yes() -> None:
    asked = (
        {"role": "user", "content": "Show me that a bad card is turned away."},
        {"role": "assistant", "content": "?"},
    )
    turn = turn_of("declined\nExit code: 3", "charge", "yes do that")
    assert RulesJudge().decide(replace(turn, messages=(*asked, *turn.messages))).score is None


@pytest.mark.parametrize(
    "wish",
    [
        "Fix the failing build.",
        "The build fails with the old config, mend it.",
        "Run the tests and tell me what is broken.",
        "Deploy it.",
    ],
)
def test_an_ordinary_request_wants_no_failure(wish: str) -> None:
    assert not is_failure_wanted(wish)


@pytest.mark.parametrize(
    "content", ["status: 404\nHTTP status 500", "line 3\nsee error 500 in the docs", "port 503 is free"]
)
def test_an_output_that_mentions_one_is_an_output(content: str) -> None:
    assert not opens_with_infrastructure(content)
