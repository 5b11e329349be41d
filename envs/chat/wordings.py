"""Wordings of the personas, as parts that combine: openings, objections, approvals, goodbyes.

A message is one phrase of each list in turn, so a few dozen phrases make thousands of messages and no two
sessions sound alike. The lists belong to the personas alone: the bundled model's recipe has its own, and
neither imports the other.
"""

import random
from collections.abc import Mapping, Sequence

# ---- the student ----

STUDENT_GREETINGS: Sequence[str] = (
    "", "", "", "", "Hi!", "Hello,", "Hey,", "Hi there!", "Good evening!", "Hey there,", "Quick one:",
)  # fmt: skip
STUDENT_REQUESTS: Sequence[str] = (
    "can you help me with this homework?",
    "could you help me with my homework?",
    "I'm stuck on this homework problem.",
    "please help me solve this.",
    "I need help with this math problem.",
    "how do I solve this one?",
    "can you solve this problem for me?",
    "I have this homework for tomorrow.",
    "can you show me how to do this?",
    "please solve this homework problem.",
    "would you help me with this question?",
    "this is my math homework for today.",
    "could you work this out with me?",
    "I don't get this problem, can you help?",
    "what is the answer to this one?",
)
STUDENT_CLOSINGS: Sequence[str] = (
    "", "", "", "", "", "", "Thanks!", "Thank you!", "Please help.", "Thanks in advance.",
)  # fmt: skip

OBJECTION_STARTS: Sequence[str] = (
    "", "", "", "Hmm,", "Thanks, but", "Sorry,", "Okay, but", "Well,", "Hm, one thing:", "Ah,", "Oh,",
    "Hmm, not like that:",
)  # fmt: skip
STUDENT_OBJECTIONS: Mapping[str, Sequence[str]] = {
    "any": (
        "this looks like a machine wrote it, please write it like a person would",
        "I can't hand that in, it looks like a chatbot wrote it; use plain sentences",
        "that's too much formatting, just write it in plain sentences",
        "could you write that as plain text",
        "can you put that in normal sentences, without the formatting",
        "please redo it as a normal paragraph",
        "I'd rather have it as plain prose",
        "my teacher will see that an AI wrote this, so please use ordinary sentences",
        "could you rewrite it in simple sentences, the way I would write it myself",
        "please drop the markdown and just explain it in words",
        "write it again without any markdown",
        "no fancy formatting please, plain sentences are enough",
    ),
    "bold": (
        "could you write that without the bold",
        "please don't use bold",
        "no bold text please",
        "can you take out the asterisks",
        "could you leave out all those asterisks and stars",
        "I don't like the bold parts, write plain sentences",
        "please remove the bold and write it normally",
        "skip the bold and the markdown",
    ),
    "list": (
        "could you write that without the bold and the numbered list",
        "please don't make it a numbered list",
        "no list please, write it as a paragraph",
        "can you turn the list into plain sentences",
        "I'd like it as prose and not as a list",
        "don't number everything, just write sentences",
        "please no bold and no numbered steps, just sentences",
    ),
    "step_label": (
        "please don't label everything with step 1, step 2",
        "can you leave out the step headings and use plain sentences",
        "I don't want it split into numbered steps, write it as a paragraph",
        "no step labels and no bold, please, just sentences",
        "could you write it without the bold and the step numbers",
        "drop the step titles and write it like a person",
    ),
    "heading": (
        "please leave out the headings",
        "no headings please, just write sentences",
        "can you write it without the titles and the bold",
        "drop the headings and write a normal paragraph",
    ),
    "answer_label": (
        "no label at the end please, just say the answer in a plain sentence",
        "could you say the answer in a sentence, without a label or bold",
        "please leave out the bold label at the end and use plain sentences",
        "the bold line at the end looks odd, write it all in normal sentences",
        "please don't end with a bold final answer, write plain sentences",
    ),
    "code": (
        "no boxes or code please, write plain sentences",
        "can you write it without the special formatting, as normal sentences",
    ),
}
STUDENT_KEEP: Sequence[str] = (
    "Keep the steps though.",
    "But keep all the steps.",
    "The steps should stay.",
    "I still want to see every step.",
    "Please keep the working.",
    "Don't leave out any step.",
    "Just keep the calculation in it.",
    "Show the steps all the same.",
    "Leave all the steps in.",
    "I still need the steps.",
    "",
    "",
)
STUDENT_MISSING: Sequence[str] = (
    "you left out the steps, please show how you get there in plain sentences",
    "I need to see the steps too, in normal sentences",
    "how did you get that? Please write out the calculation in plain sentences",
    "can you explain it with the steps, in plain sentences",
    "that's too short, please show each step in ordinary sentences",
    "please write the steps as well, without lists or bold",
    "I can't hand in just the answer, please write down the steps in sentences",
    "where are the steps? Write them out in plain words",
    "could you add the calculation, written as normal sentences",
    "please show the working in a few plain sentences",
)
STUDENT_MISSING_ENDS: Sequence[str] = (
    "", "", "", "Thanks.", "I want to understand it.", "My teacher wants to see them.", "Please.",
    "Otherwise fine.",
)  # fmt: skip
STUDENT_APPROVALS: Sequence[str] = (
    "Perfect, that's exactly how I like it.",
    "Great, that's just what I wanted.",
    "That's perfect!",
    "Yes, like that!",
    "Nice, that reads well.",
    "That's much better.",
    "Oh, that's really clear.",
    "Great, I understand it now.",
    "Lovely, that's how I would write it.",
    "Good, that is easy to follow.",
    "Super, exactly what I needed.",
    "That's great, very clear.",
    "Awesome, I get it now.",
    "Wonderful, that sounds like me.",
    "Very good, I like this way of writing.",
)
STUDENT_THANKS: Sequence[str] = (
    "Thank you!", "Thanks!", "Thanks a lot!", "Thank you so much!", "Many thanks!", "Thanks for your help!",
    "Thank you for the help.", "Cheers!",
)  # fmt: skip
STUDENT_MOVES_ON: Sequence[str] = (
    "I'll hand it in like this.",
    "That was my last problem for today.",
    "I'll copy it into my notebook now.",
    "Now I can do the rest myself.",
    "On to the next subject.",
    "That's it for today.",
    "I'm done with my homework then.",
    "See you tomorrow.",
)

# ---- the teacher ----

TEACHER_REQUESTS: Sequence[str] = (
    "Please grade this homework.",
    "Can you grade this homework?",
    "Could you grade this for me?",
    "Please check this homework.",
    "I need a grade for this homework.",
    "Hi, please grade this homework.",
    "Please look at this homework and grade it.",
    "Here is another homework to grade.",
    "Could you grade the homework of this student?",
    "Can you check and grade this student's work?",
    "Grade this homework, please.",
    "Hello! Can you grade this homework for me?",
)
TEACHER_TASKS: Sequence[str] = (
    "Problem: {question} Correct answer: {answer}. The student wrote: {work}",
    "Problem: {question} Correct answer: {answer}. The student wrote: {work}",
    "Problem: {question}\nCorrect answer: {answer}.\nThe student wrote: {work}",
)
TEACHER_CLOSINGS: Sequence[str] = (
    "",
    "",
    "",
    "",
    "Thanks!",
    "Thank you.",
)

TEACHER_OBJECTIONS: Mapping[str, Sequence[str]] = {
    "any": (
        "that's too curt, please be warmer and say what the student did right or where the slip is",
        "please write a kinder comment that names what went right or wrong",
        "the comment should be specific and encouraging",
        "this is too short for a child; be friendly and say which step was right or wrong",
        "could you be more encouraging and more specific",
        "please make it warm and detailed, and name the step in question",
        "I need a comment with some heart: praise what is good and point at the slip if there is one",
        "write it again, kindly, and tell the student exactly what was good or where it went off",
        "can you add what was done well and say it in a warm way",
        "a bare grade doesn't help anyone, please give a friendly and specific comment",
        "this sounds harsh, please be kind and point to the exact step",
        "more warmth please, and be specific about the work",
    ),
    "cold": (
        "that sounds cold, please be warmer and more encouraging",
        "could you say it in a kinder way",
        "please add some encouragement, this is for a child",
        "be a bit friendlier, and keep it specific",
        "it needs a warmer tone",
        "a kind word would help the student, please add one",
        "can you make it more encouraging",
        "please be gentle and encouraging in the comment",
    ),
    "vague": (
        "please be more specific about what the student did",
        "say which step was right or where the slip is",
        "could you name what exactly was done right or wrong",
        "that's kind but vague, point at the step you mean",
        "please mention the calculation itself",
        "the student should see what was good or where it went off, so be specific",
        "can you refer to the student's steps",
        "tell the student which calculation you mean",
    ),
    "short": (
        "that is a bit short, please write a warm and specific comment",
        "could you write a little more, warm and specific",
        "please make the comment longer, friendly and specific",
        "one or two more sentences please, kind and about the steps",
    ),
}
TEACHER_ENDS: Sequence[str] = (
    "", "", "", "Thanks.", "Please.", "It's for a ten-year-old.", "The student tries hard.",
    "My students read these.", "Keep the grade.", "The verdict is fine.",
)  # fmt: skip
TEACHER_APPROVALS: Sequence[str] = (
    "Perfect, that's the kind of comment I like.",
    "Great, that's exactly what I wanted.",
    "That's lovely, warm and specific.",
    "Yes, like that!",
    "Wonderful, the student will be glad to read this.",
    "Very good, kind and to the point.",
    "That's a great comment.",
    "Nice, this really helps the student.",
    "Excellent, just right.",
    "That's much better.",
    "Good, I'll use it as it is.",
    "Beautiful, I couldn't say it better.",
    "Super, that is helpful and friendly.",
    "I like that one a lot.",
)
TEACHER_THANKS: Sequence[str] = (
    "Thank you!", "Thanks!", "Thanks a lot!", "Many thanks!", "Thank you so much!",
    "Thank you for your help.", "Thanks, that helps.",
)  # fmt: skip
TEACHER_MOVES_ON: Sequence[str] = (
    "I'll send it to the student.",
    "That was the last one for today.",
    "I'll write it under the homework.",
    "On to the next class.",
    "That's all for this evening.",
    "I'll hand it back tomorrow.",
    "Now I can go home.",
)

_STOPS = (".", "!", "?")

AGAIN: Sequence[str] = (
    "It is still not how I'd like it:", "Still not quite it,", "Nearly, but", "Once more please:", "Almost,",
    "That's still not it,",
)  # fmt: skip


def compose_message(rng: random.Random, *parts: Sequence[str]) -> str:
    """One phrase of each list, joined into a message whose sentences start with a capital and which ends."""
    message = ""
    for phrase in (rng.choice(part) for part in parts):
        message = f"{message} {_capital(phrase) if message.endswith(_STOPS) else phrase}".strip()
    return tidy(message)


def tidy(text: str) -> str:
    """`text` with a capital at its start and a stop at its end."""
    text = _capital(text.strip())
    return text if text.endswith(_STOPS) else text + "."


def compose_sentence(rng: random.Random, start: Sequence[str], body: Sequence[str]) -> str:
    """An opener and a clause as one sentence; a clause that asks ends with a question mark."""
    opener, clause = rng.choice(start), rng.choice(body)
    asks = clause.lower().startswith(("could", "can ", "would"))
    return tidy(f"{opener} {clause}{'?' if asks and not clause.endswith('?') else ''}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
