"""Wordings of a user of few words: lower case, no greeting, no reason given."""

from collections.abc import Mapping, Sequence

CURT_REQUESTS: Sequence[str] = (
    "", "", "solve:", "solve this.", "homework:", "help with this:", "pls solve:", "next one:", "need this:", "math.",
)  # fmt: skip
CURT_OBJECTIONS: Mapping[str, Sequence[str]] = {
    "any": (
        "no.", "nope", "not like that", "plain text.", "plain text pls", "too fancy", "just sentences",
        "no formatting", "no markdown", "less formatting", "sounds like a bot", "normal text.", "plain sentences",
        "shorter.",
    ),
    "bold": (
        "drop the bold", "no bold", "no bold pls", "bold off", "no asterisks", "why bold?", "unbold it",
        "lose the stars",
    ),
    "list": ("no lists", "no list.", "not a list", "one paragraph", "sentences, not a list", "why a list?"),
    "step_label": (
        "no step labels", "drop the step 1 step 2", "one paragraph.", "steps yes, labels no", "too chopped up",
        "no step numbers",
    ),
    "heading": ("no headings", "no titles", "drop the heading", "headings out", "why headings?"),
    "answer_label": ("no label at the end", "one sentence", "just say the answer", "no answer label", "label off"),
    "code": ("no code stuff", "plain characters", "no boxes or symbols", "words pls"),
    "no_steps": (
        "steps?", "show the steps", "how?", "show your work", "too short.", "where's the math", "steps missing",
        "and the working?",
    ),
}  # fmt: skip
CURT_AGAIN: Sequence[str] = ("", "", "", "again:", "no.", "still.", "come on,", "once more:")
CURT_APPROVALS: Sequence[str] = (
    "ok", "fine", "thx", "good.", "k", "ok thx", "yep", "works", "great", "ty", "good enough", "👍", "better",
    "perfect", "nice", "that works", "ok, next", "done, thx", "yes.", "cool",
)  # fmt: skip
