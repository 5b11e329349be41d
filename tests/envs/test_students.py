"""Students of other kinds: the student's problems and taste, reactions of their own, repeatable from a seed."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from student_replies import FAULTY, PLAIN
from tensordict import TensorDictBase

from clawrl_trl.envs.chat import wordings_bilingual, wordings_curt
from clawrl_trl.envs.chat.env import ChatEnv
from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.envs.chat.personas import RatingPersona, Student
from clawrl_trl.envs.chat.students import STUDENTS, BilingualStudent, CurtStudent, NoisyStudent, ThumbsStudent

LANGUAGES = {"de": wordings_bilingual.GERMAN, "es": wordings_bilingual.SPANISH}


def list_reactions(user: Student, reply: str, count: int, turn: int = 1) -> list[str]:
    task = user.tasks(0, "train", 1)[0]
    return [user.react(task, reply, turn, random.Random(seed)).text for seed in range(count)]


def flatten(by_fault: dict[str, Sequence[str]]) -> list[str]:
    return [phrase for phrases in by_fault.values() for phrase in phrases]


@pytest.mark.parametrize("name", STUDENTS)
@given(seed=st.integers(0, 10**9))
def test_a_seed_says_it_all(name: str, seed: int) -> None:
    first, second = persona(name), persona(name)
    task = first.tasks(seed, "train", 1)[0]
    assert second.tasks(seed, "train", 3)[0] == task
    assert first.opening(task, random.Random(seed)) == second.opening(task, random.Random(seed))
    for reply in (PLAIN, *FAULTY.values()):
        for turn in (1, 2):
            reactions = [user.react(task, reply, turn, random.Random(seed)) for user in (first, second)]
            assert reactions[0] == reactions[1]


@pytest.mark.parametrize("name", STUDENTS)
def test_problems_and_style_are_the_students(name: str) -> None:
    user, student = persona(name), Student()
    assert user.name == name
    assert user.tasks(3, "heldout", 20) == student.tasks(3, "heldout", 20)
    task = user.tasks(3, "heldout", 1)[0]
    assert user.style(task, PLAIN).score == 1.0
    for fault, reply in FAULTY.items():
        assert user.style(task, reply) == student.style(task, reply)
        assert fault == "any" or user.style(task, reply).faults == (fault,)
    assert task.question in user.opening(task, random.Random(0))
    assert user.correct(task, f"The answer is {task.answer}.")


@pytest.mark.parametrize("name", ["curt", "bilingual"])
def test_who_means_what_is_said_is_satisfied_by_the_style_alone(name: str) -> None:
    user = persona(name)
    task = user.tasks(0, "train", 1)[0]
    for seed in range(100):
        assert user.react(task, PLAIN, 1, random.Random(seed)).satisfied
        assert not any(user.react(task, reply, 1, random.Random(seed)).satisfied for reply in FAULTY.values())


def test_thumbs_say_nothing_and_leave() -> None:
    user = ThumbsStudent()
    task = user.tasks(0, "train", 1)[0]
    assert isinstance(user, RatingPersona) and not isinstance(Student(), RatingPersona)
    assert user.rate(task, PLAIN, random.Random(0)) == 1
    assert {user.rate(task, reply, random.Random(0)) for reply in FAULTY.values()} == {-1}
    assert {*list_reactions(user, PLAIN, 20), *list_reactions(user, FAULTY["bold"], 20)} == {""}


@pytest.mark.parametrize("max_turns", [1, 3])
@pytest.mark.parametrize(("reply", "thumbs"), [(PLAIN, 1), (FAULTY["bold"], -1)])
def test_a_thumb_ends_the_conversation(reply: str, thumbs: int, max_turns: int) -> None:
    def answer(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", reply)

    rollout = ChatEnv("thumbs", max_turns=max_turns).rollout(9, answer)
    assert rollout["thumbs"].flatten().tolist() == [0]
    assert rollout["next", "thumbs"].flatten().tolist() == [thumbs]
    assert rollout["next", "terminated"].flatten().tolist() == [True]
    assert rollout["next", "turn"].flatten().tolist() == [1]
    assert rollout["next", "reward"].flatten().tolist() == [float(thumbs == 1)]


def test_a_reply_that_never_came_gets_no_thumb() -> None:
    replies = ["", PLAIN]
    rollout = ChatEnv("thumbs").rollout(9, lambda tensordict: tensordict.set("action", replies.pop(0)))
    assert rollout["next", "thumbs"].flatten().tolist() == [0, 1]


@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 1.0])
def test_a_share_of_the_noisy_reactions_is_reversed(share: float) -> None:
    user = NoisyStudent(share)
    task = user.tasks(0, "train", 1)[0]
    for reply, liked in ((PLAIN, True), (FAULTY["bold"], False), (FAULTY["no_steps"], False)):
        said = [user.react(task, reply, 1, random.Random(seed)) for seed in range(2000)]
        reversed_count = sum(reaction.satisfied is not liked for reaction in said)
        assert abs(reversed_count / 2000 - share) < 0.025
        assert all((reaction.mood == "pleased") is reaction.satisfied for reaction in said)


def test_by_default_the_noisy_student_reverses_15_percent() -> None:
    assert NoisyStudent().reversed_share == 0.15


def test_noisy_without_noise_is_the_student_word_for_word() -> None:
    def said(user: Student, reply: str) -> set[str]:
        return set(list_reactions(user, reply, 3000))

    student, noisy = Student(), NoisyStudent(1.0)
    assert len(said(noisy, PLAIN) & said(student, FAULTY["any"])) >= 50
    assert len(said(noisy, FAULTY["any"]) & said(student, PLAIN)) >= 50


def test_curt_messages_are_short_and_many() -> None:
    objections = flatten(wordings_curt.CURT_OBJECTIONS)
    assert len(set(objections)) >= 30
    assert set(wordings_curt.CURT_OBJECTIONS) == set(FAULTY)
    user = CurtStudent()
    for reply in (PLAIN, *FAULTY.values()):
        for text in list_reactions(user, reply, 200, turn=2):
            assert len(text.split()) <= 8
            assert "please" not in text.lower() and "could you" not in text.lower()


@pytest.mark.parametrize("fault", [fault for fault in FAULTY if fault != "any"])
def test_curt_objections_are_true_to_the_fault(fault: str) -> None:
    assert set(list_reactions(CurtStudent(), FAULTY[fault], 300)) <= set(wordings_curt.CURT_OBJECTIONS[fault])


@pytest.mark.parametrize("language", LANGUAGES)
def test_wordings_of_a_language_are_many(language: str) -> None:
    phrases = LANGUAGES[language]
    wordings = [*flatten(phrases.objections), *phrases.missing]
    assert len(wordings) == len(set(wordings)) >= 25
    assert set(phrases.objections) == set(FAULTY) - {"no_steps"}
    assert not set(wordings) & set(phrases.approvals)


@pytest.mark.parametrize("fault", [fault for fault in FAULTY if fault not in ("any", "no_steps")])
def test_bilingual_objections_are_true_to_the_fault(fault: str) -> None:
    ends = [ending for phrases in LANGUAGES.values() for ending in phrases.keep]
    allowed = {
        f"{objection} {ending}".strip()
        for phrases in LANGUAGES.values()
        for objection in phrases.objections[fault]
        for ending in ends
    }
    assert set(list_reactions(BilingualStudent(foreign_share=1.0), FAULTY[fault], 300)) <= allowed


@pytest.mark.slow
def test_half_of_the_bilingual_reactions_are_not_english() -> None:
    student, user = Student(), BilingualStudent()
    for reply in (PLAIN, FAULTY["bold"], FAULTY["no_steps"]):
        english = set(list_reactions(student, reply, 20_000))
        said = list_reactions(user, reply, 2000)
        assert 0.45 < sum(text not in english for text in said) / 2000 < 0.55
    task = user.tasks(0, "train", 1)[0]
    assert user.opening(task, random.Random(4)) == student.opening(task, random.Random(4))
