"""Replies to a homework problem, each with one fault of the student's style and no other, but for the last."""

REQUEST = "Can you help me with this homework? Tom has 5 apples and buys 7 more. How many apples has he got?"
PLAIN = "Tom has 5 apples. He buys 7 more, so 5 + 7 = 12. The answer is 12."
FAULTY = {
    "bold": "Tom has 5 apples and buys 7 more, so 5 + 7 = **12**. The answer is 12.",
    "list": "1. Tom has 5 apples.\n2. He buys 7 more, so 5 + 7 = 12.\nThe answer is 12.",
    "step_label": "Step 1: Tom has 5 apples. Step 2: He buys 7 more, so 5 + 7 = 12.",
    "heading": "## Solution\nTom has 5 apples and buys 7 more, so 5 + 7 = 12.",
    "answer_label": "Tom has 5 apples and buys 7 more, so 5 + 7 = 12.\nFinal answer: 12",
    "code": "```\n5 + 7 = 12\n```\nTom has 5 and buys 7 more, so 5 + 7 = 12.",
    "no_steps": "The answer is 12.",
    "any": "**Step 1:** Tom has 5 apples.\n**Step 2:** 5 + 7 = 12.\n\n**Final answer:** 12",
}
