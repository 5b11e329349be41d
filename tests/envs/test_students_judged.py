"""The embedded judge on the students' wordings: what it decides the other way round is counted, never tuned away."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from student_replies import FAULTY, PLAIN, REQUEST

from clawrl_trl.envs.chat import wordings, wordings_curt
from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.envs.chat.personas import Student
from clawrl_trl.envs.chat.students import STUDENTS, NoisyStudent
from clawrl_trl.envs.chat.wordings_bilingual import GERMAN, SPANISH, Phrases
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import JudgedTurn

DRAWN = 12
DRAWN_WIDELY = 60
"""Reactions drawn to each kind of reply."""
MOST_WRONG = {"student": 0.02, "noisy_student": 0.02, "curt": 0.05, "bilingual": 0.02}
"""Largest share of wrong signs among all that a persona may say."""


@dataclass(frozen=True)
class Said:
    """A reaction to a reply, and what it means."""

    reply: str
    text: str
    score: int


@pytest.fixture(scope="module")
def judge() -> RulesJudge:
    return RulesJudge()


def score(judge: RulesJudge, said: Said) -> float | None:
    message = {"role": "user", "content": said.text}
    reply = {"role": "assistant", "content": said.reply}
    request = ({"role": "user", "content": REQUEST},)
    return judge.decide(JudgedTurn("t", "s", request, None, reply, (message,), ("owner",), (), 0)).score


def draw_reactions(name: str, count: int = DRAWN) -> Iterator[Said]:
    """Reactions to each kind of reply; of the noisy student, those that it means."""
    user = NoisyStudent(0.0) if name == "noisy_student" else persona(name)
    assert isinstance(user, Student)
    task = user.tasks(0, "train", 1)[0]
    for reply in (PLAIN, *FAULTY.values()):
        texts = {user.react(task, reply, 1 + seed % 2, random.Random(seed)).text for seed in range(count)}
        yield from (Said(reply, text, 1 if reply == PLAIN else -1) for text in sorted(texts))


def list_phrases(by_fault: dict[str, Sequence[str]]) -> Iterator[Said]:
    return (Said(FAULTY[fault], text, -1) for fault, phrases in by_fault.items() for text in phrases)


def report_signs(title: str, judge: RulesJudge, reactions: list[Said]) -> list[Said]:
    """Print the counts, return the wrong ones."""
    given = [(said, score(judge, said)) for said in reactions]
    wrong = [said for said, decided in given if decided == -said.score]
    silent = sum(decided != said.score for said, decided in given) - len(wrong)
    print(f"{title}: {len(given)} reactions, {len(wrong)} wrong signs, {silent} undecided")
    for said in wrong:
        print(f"    {said.text!r} is not {-said.score:+d}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ("student", *STUDENTS) if name != "thumbs"])
def test_wrong_signs_are_few(name: str, judge: RulesJudge) -> None:
    reactions = list(draw_reactions(name))
    assert len(report_signs(name, judge, reactions)) <= MOST_WRONG[name] * len(reactions)


@pytest.mark.parametrize("phrases", [GERMAN, SPANISH], ids=["de", "es"])
def test_no_other_language_is_read(phrases: Phrases, judge: RulesJudge) -> None:
    reactions = [*list_phrases({**phrases.objections, "no_steps": phrases.missing})]
    reactions += [Said(PLAIN, text, 1) for text in phrases.approvals]
    assert {score(judge, said) for said in reactions} == {None}


@pytest.mark.slow
def test_no_objection_of_the_bilingual_one_is_read_as_its_opposite(judge: RulesJudge) -> None:
    objections = [said for said in draw_reactions("bilingual", DRAWN_WIDELY) if said.score == -1]
    objections += list_phrases({**wordings.STUDENT_OBJECTIONS, "no_steps": wordings.STUDENT_MISSING})
    assert report_signs("bilingual objections", judge, objections) == []


def test_curt_phrases(judge: RulesJudge) -> None:
    reactions = [
        *list_phrases(wordings_curt.CURT_OBJECTIONS),
        *(Said(PLAIN, text, 1) for text in wordings_curt.CURT_APPROVALS),
    ]
    assert len(report_signs("curt phrases", judge, reactions)) <= MOST_WRONG["curt"] * len(reactions)
