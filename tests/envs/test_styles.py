"""The personas' rules on replies written by hand, tricky ones included."""

import pytest

from clawrl_trl.envs.chat.answers import extract_answer, extract_numbers, extract_verdict
from clawrl_trl.envs.chat.styles import check_student_style, check_teacher_style

PLAIN = (
    "Tom starts with 5 apples. He buys 7 more, so 5 + 7 = 12. The answer is 12.",
    "First, Tom has 5 apples. Then he buys 7 more, which makes 5 + 7 = 12 apples. So he has 12 in all.",
    "There are 3 boxes with 4 pens in each, so 3 * 4 = 12. The answer is 12.",
    "There are 3 boxes with 4 pens in each, so 3*4 = 12. The answer is 12.",
    "Multiply the boxes * pens, that is 3 * 4 = 12, and the answer is 12.",
    "Each of the 4 friends gets 20 / 4 = 5 coins, so the answer is 5.",
    "Start with 30 coins. Giving away 12 leaves 30 - 12 = 18 coins.",
    "She had 30 coins and gave away 12, so now she has 18.",
    "Well, 5 plus 7 is 12, so Tom has 12 apples now.",
    "Half of 12 is 6, and 6 plus 3 makes 9, so there are 9 left.",
    "Let's see: 5 apples and 7 more make 12 apples. The final answer is 12.",
    "You add 5 and 7 to get 12. That's how many apples Tom has.",
    "In step 1 we add 5 and 7, which gives 12. After that nothing is left to do, so the answer is 12.",
    "The first step is to add 5 and 7, which gives 12.\n\nThe answer is 12.",
    "Sara had $1,200 and spent $200, so 1,200 - 200 = 1,000 dollars are left.",
    "It costs 3 * (4 + 1) = 15 dollars in all, so the answer is 15.",
    "(5 + 1) times 2 is 12, so we get 12 in the end. That is the answer.",
    "Of course, happy to help! Tom has 5 apples and gets 7, so 5 + 7 = 12. The answer is 12.",
    "5 people each eat 2 slices, so together they eat 10 slices.",
    "Take 30, subtract 12 from it and you are left with 18. That is the answer.",
)
STYLED = (
    ("**Step 1:** Tom has 5 apples.\n**Step 2:** 5 + 7 = 12.\n\n**Final answer:** 12", {"bold", "step_label"}),
    ("**1.** Tom has 5 apples.\n**2.** He buys 7, so 5 + 7 = 12.\n\n**Final answer:** 12", {"bold"}),
    ("1. Tom has 5 apples.\n2. He buys 7 more, so 5 + 7 = 12.\nThe answer is 12.", {"list"}),
    ("1) Tom has 5 apples.\n2) He buys 7 more, so 5 + 7 = 12.", {"list"}),
    ("We do this: 1) take the 5 apples, 2) add 7, so 5 + 7 = 12.", {"list"}),
    ("(1) Tom has 5 apples.\n(2) He buys 7 more, so 5 + 7 = 12.", {"list"}),
    ("a) Tom has 5 apples.\nb) He buys 7 more, so 5 + 7 = 12.", {"list"}),
    ("- Tom has 5 apples.\n- He buys 7 more, so 5 + 7 = 12.", {"list"}),
    ("• Tom has 5 apples\n• 5 + 7 = 12, so he has 12", {"list"}),
    ("* Tom has 5 apples.\n* He buys 7 more, so 5 + 7 = 12.", {"bold"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = **12**. The answer is 12.", {"bold"}),
    ("Tom has *five* apples (5) and buys 7 more, so 5 + 7 = 12.", {"bold"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = __12__. The answer is 12.", {"bold"}),
    ("<b>Answer</b> Tom has 5 and gets 7, so 5 + 7 = 12.", {"bold"}),
    ("## Solution\nTom has 5 apples and buys 7 more, so 5 + 7 = 12.", {"heading"}),
    ("Solution:\nTom has 5 apples and buys 7 more, so 5 + 7 = 12.", {"heading"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = 12.\n---\nThat is it.", {"heading"}),
    ("Step 1: Tom has 5 apples. Step 2: He buys 7 more, so 5 + 7 = 12.", {"step_label"}),
    ("Step one: take the 5 apples and add 7, so 5 + 7 = 12.", {"step_label"}),
    ("step 1 - take the 5 apples and add 7, so 5 + 7 = 12", {"step_label"}),
    ("First step: take the 5 apples and add 7, so 5 + 7 = 12.", {"step_label"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = 12.\nFinal answer: 12", {"answer_label"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = 12.\n\nAnswer: 12", {"answer_label"}),
    ("Tom has 5 apples and buys 7 more, so 5 + 7 = 12, that is \\boxed{12}.", {"answer_label"}),
    ("```\n5 + 7 = 12\n```\nTom has 5 and buys 7 more, so 5 + 7 = 12.", {"code"}),
    ("The answer is 12.", {"no_steps"}),
    ("12", {"no_steps"}),
    ("5 + 7 = 12", {"no_steps"}),
    ("Tom has a lot of apples now, and I am sure that the answer is 12.", {"no_steps"}),
    ("Happy to help! Tom buys some more apples. The answer is 12 apples.", {"no_steps"}),
    ("", {"no_steps"}),
    ("The answer is **12**.", {"bold", "no_steps"}),
)


@pytest.mark.parametrize("reply", PLAIN)
def test_student_likes(reply: str) -> None:
    assert check_student_style(reply).faults == ()
    assert check_student_style(reply).score == 1.0


@pytest.mark.parametrize(("reply", "faults"), STYLED)
def test_student_dislikes(reply: str, faults: set[str]) -> None:
    assert faults <= set(check_student_style(reply).faults)
    assert check_student_style(reply).score == 0.0


QUESTION = "Tom has 5 apples. He buys 7 more. How many apples does Tom have now?"
KIND = (
    "Well done! You added 5 and 7 and your answer of 12 is correct. Keep it up!",
    "Great job! You set up 5 + 7 = 12 the right way, so 12 is correct.",
    "Nice effort! The answer 13 is incorrect. The slip is in the last step: 5 + 7 = 12, not 13. You can do it!",
    "I like how you wrote down each step, and the addition is spot on. The answer is right.",
    "You were so close! Your setup is right, only the sum went wrong. Try it once more.",
    "Good start. You chose the right operation, but there is a small slip when you add 5 and 7.",
    "Thank you for showing your work. 5 + 7 makes 12, so check the last step again.",
    "Don't worry, this happens to everyone: the addition is off by one, so count up from 5 again.",
    "**Wonderful work!** You took the 5 apples and the 7 new ones together, and that is correct.",
    "I'm proud of you: every calculation is there and the result is right, keep going like this.",
    "Not quite right yet, but a good try; you read the 5 and the 7 well and only the sum slipped.",
    "This is careful work. Your multiplication is correct and easy to read for me.",
)
CURT = (
    ("**Grade:** correct.", {"cold", "vague", "short"}),
    ("**Grade:** incorrect. The answer is 12.", {"cold", "vague", "short"}),
    ("Incorrect. It should be 12.", {"cold", "vague", "short"}),
    ("Great job!", {"vague", "short"}),
    ("Great job! Keep up the good work, you are doing really well in class.", {"vague"}),
    ("Well done, your answer of 12 is correct and I am very happy with you.", {"vague"}),
    ("The addition in the last step is wrong, because 5 + 7 = 12 and not 13.", {"cold"}),
    ("Not a good job. The addition in the last step is wrong, 5 + 7 = 12.", {"cold"}),
    ("Well done, 5 + 7 = 12.", {"short"}),
    ("The student's answer does not match. Please correct it and hand it in again.", {"cold", "vague"}),
    ("This is not good work and I am not happy that 5 plus 7 was taken to be 13.", {"cold"}),
    ("", {"cold", "vague", "short"}),
)


@pytest.mark.parametrize("reply", KIND)
def test_teacher_likes(reply: str) -> None:
    assert check_teacher_style(reply, question=QUESTION, results=(12, 13)).faults == ()


@pytest.mark.parametrize(("reply", "faults"), CURT)
def test_teacher_dislikes(reply: str, faults: set[str]) -> None:
    assert set(check_teacher_style(reply, question=QUESTION, results=(12, 13)).faults) == faults


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("**Grade:** correct.", True),
        ("**Grade:** incorrect. The answer is 12.", False),
        ("**Verdict:** not correct", False),
        ("Well done! You worked out 5 + 7 = 12, and your answer of 12 is correct.", True),
        ("You set up 5 + 7 = 12 the right way, so 12 is correct. Keep it up!", True),
        ("Good try! You used the right numbers, but 13 is incorrect.", False),
        ("Not quite, but a lovely start.", False),
        ("A small slip in the last step, otherwise beautiful.", False),
        ("You added 5 and 7 correctly, but the answer should be 12.", False),
        ("No mistakes at all, wonderful!", None),
        ("No mistakes at all, this is right.", True),
        ("You are on the right track!", None),
        ("The correct answer is 12, so look at the sum again.", False),
        ("Spot on, every step of it.", True),
        ("Full marks for this one.", True),
        ("That isn't right yet.", False),
        ("You were almost there.", False),
        ("5 + 7 is 12, not 13.", False),
        ("I enjoyed reading this.", None),
        ("Great work! Nothing wrong here, 12 is right.", True),
    ],
)
def test_verdict(reply: str, right: bool | None) -> None:
    assert extract_verdict(reply) is right


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("**Final answer:** 12", 12),
        ("**Final answer:** 12 apples", 12),
        ("The answer is 12. I checked it 2 times.", 12),
        ("So 5 + 7 = 12.", 12),
        ("The answer is 5 + 7 = 12 apples.", 12),
        ("The answer is -3.", -3),
        ("He has $1,200 left.", 1200),
        ("The answer is 2.5 apples.", 2.5),
        ("The answer: **12**.", 12),
        ("My first answer was 11. The answer is 12.", 12),
        ("There is no answer.", None),
        ("The answer is easy to see from 5 and 7.", 5),
        ("5-3 is 2", 2),
        ("", None),
    ],
)
def test_answer(reply: str, answer: float | None) -> None:
    assert extract_answer(reply) == answer


def test_numbers() -> None:
    assert extract_numbers("From 1,200 take $3.50; 5-3 and -7, 2025.") == [1200.0, 3.5, 5.0, 3.0, -7.0, 2025.0]
