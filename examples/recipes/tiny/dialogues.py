"""Training conversations: who says what, and which replies the model is to learn.

A `Dialogue` is in the chat format of any OpenAI client. Its replies are learnt; of those marked as context, which
are there to be reacted to, all but the first token (the first reply of a chat in which the user then objects must
not shift how often the model answers plainly by itself).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from clawrl_trl.envs.chat.problems import Problem, Split, assign_split, draw_problem
from recipes.tiny import actions, calculator, small_talk
from recipes.tiny.instructions import instruction
from recipes.tiny.replies import Attempt, attempt, form_of, grading, solution
from recipes.tiny.wishes import NO_WISH, Wish

Message = dict[str, Any]
HINT = "\n\n[Hint from the user's later message: {hint}]"


@dataclass
class Dialogue:
    """One conversation.

    Attributes:
        messages: chat messages; the opening of assistant messages with the key "context" is not learnt.
        tools: tool schemas in OpenAI's format, or None.
        thinking: whether the chat is rendered with enable_thinking.
    """

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    thinking: bool = False

    def user(self, text: str) -> None:
        """Append a user message."""
        self.messages.append({"role": "user", "content": text})

    def assistant(self, text: str, *, context: bool = False, **extra: Any) -> None:
        """Append a reply; the opening of `context` is not learnt."""
        mark = {"context": True} if context else {}
        self.messages.append({"role": "assistant", "content": text, **extra, **mark})


@dataclass(frozen=True)
class Task:
    """The user's task: solve a problem, or grade a student's attempt at it."""

    problem: Problem
    attempt: Attempt | None = None

    def asked(self, rng: random.Random) -> str:
        """The request in the user's words."""
        if self.attempt is None:
            return rng.choice(small_talk.SOLVE_FRAMES).format(q=self.problem.question)
        text = small_talk.grade_frame(rng).format(q=self.problem.question, a=self.problem.answer, w=self.attempt.work)
        return (
            text
            if rng.random() < 0.7
            else text.replace(" Correct answer", "\nCorrect answer").replace(
                " The student wrote", "\nThe student wrote"
            )
        )

    def done(self, rng: random.Random, wish: Wish) -> str:
        """The reply that `wish` asks for."""
        if self.attempt is None:
            return solution(rng, self.problem, wish)
        return grading(rng, self.problem, self.attempt, wish)


def solve_task(rng: random.Random, split: Split) -> Task:
    """A problem of `split` to solve."""
    while True:
        problem = draw_problem(rng)
        if assign_split(problem.question) == split:
            return Task(problem)


def grade_task(rng: random.Random, split: Split) -> Task:
    """A problem of `split` with a student's attempt, right half of the time."""
    problem = solve_task(rng, split).problem
    return Task(problem, attempt(rng, problem, rng.random() < 0.5))


_SOLVE_WISHES = (
    (Wish(form="plain"), 60),
    (Wish(form="bold"), 20),
    (Wish(size="short"), 10),
    (Wish(size="steps"), 8),
)
_GRADE_WISHES = (
    (Wish(tone="warm"), 60),
    (Wish(tone="curt"), 22),
    (Wish(form="plain"), 6),
    (Wish(form="bold"), 4),
)


def draw_wish(rng: random.Random, task: Task) -> Wish:
    """A wish that makes sense for `task`, the frequent ones being those that personas have."""
    wishes = _SOLVE_WISHES if task.attempt is None else _GRADE_WISHES
    return rng.choices([wish for wish, _ in wishes], weights=[weight for _, weight in wishes])[0]


def _merge(wish: Wish, later: Wish) -> Wish:
    return Wish(later.form or wish.form, later.size or wish.size, later.tone or wish.tone)


def said(rng: random.Random, wish: Wish, split: Split) -> str:
    """`wish` in words: an instruction for each side that it sets."""
    sides = [Wish(form=wish.form), Wish(size=wish.size), Wish(tone=wish.tone)]
    return " ".join(instruction(rng, side, split) for side in sides if side != NO_WISH)


def _with_fillers(rng: random.Random, text: str) -> str:
    if rng.random() < 0.12:
        text = f"{rng.choice(small_talk.FILLERS)} {text}"
    if rng.random() < 0.08:
        text = f"{text} {rng.choice(small_talk.FILLERS)}"
    if rng.random() < 0.2:
        text = f"{text} {rng.choice(small_talk.CLOSINGS)}"
    return text


def place(rng: random.Random, dialogue: Dialogue, request: str, said_so: str | None, where: str) -> None:
    """Append the user's request with an instruction in its place.

    Args:
        rng: the source of chance.
        dialogue: its first message may become a system prompt.
        request: the request in the user's words.
        said_so: the instruction, or None.
        where: "system", "before", "after", "hint" (as the judge appends it) or "none".
    """
    system = rng.choice(small_talk.SYSTEMS) if rng.random() < 0.25 else None
    request = _with_fillers(rng, request)
    if said_so is not None:
        gap = rng.choice((" ", " ", "\n", "\n\n"))
        if where == "system":
            system = said_so if rng.random() < 0.4 else f"{rng.choice(small_talk.SYSTEMS)} {said_so}"
        elif where == "before":
            request = f"{said_so}{gap}{request}"
        elif where == "after":
            request = f"{request}{gap}{said_so}"
        elif where == "hint":
            request += HINT.format(hint=said_so)
    if system is not None:
        dialogue.messages.insert(0, {"role": "system", "content": system})
    dialogue.user(request)


def unasked(rng: random.Random, task: Task) -> Dialogue:
    """A first request without any style instruction; at times with a hint that asks for nothing."""
    dialogue = Dialogue()
    hint = small_talk.thanks(rng) if rng.random() < 0.03 else None
    place(rng, dialogue, task.asked(rng), hint, "hint")
    dialogue.assistant(task.done(rng, NO_WISH))
    return dialogue


WHERE = ("system", "before", "after", "hint")


def asked(
    rng: random.Random, task: Task, split: Split, wish: Wish | None = None, where: str | None = None
) -> Dialogue:
    """A first request with a style instruction somewhere in the prompt."""
    dialogue = Dialogue()
    if wish is None:
        wish = draw_wish(rng, task)
        if task.attempt is None and wish.form == "plain" and rng.random() < 0.1:
            wish = replace(wish, size=rng.choice(("short", "steps")))
    where = where or rng.choices(WHERE, weights=(22, 14, 20, 44))[0]
    place(rng, dialogue, task.asked(rng), said(rng, wish, split), where)
    dialogue.assistant(task.done(rng, wish))
    return dialogue


def _settled(rng: random.Random, task: Task, wish: Wish) -> Wish:
    """`wish` with the model's habit written out, so that a chat keeps the style it began with."""
    if task.attempt is None:
        return replace(wish, form=form_of(rng, wish))
    if wish == NO_WISH:
        return Wish(tone="warm" if rng.random() < 0.3 else "curt")
    return wish


def _fresh_task(rng: random.Random, task: Task, split: Split) -> Task:
    return solve_task(rng, split) if task.attempt is None else grade_task(rng, split)


def chat(rng: random.Random, task: Task, split: Split) -> Dialogue:
    """Several turns: objections and rewrites, thanks, moving on; the style last agreed on is kept."""
    dialogue = Dialogue()
    wish = draw_wish(rng, task) if rng.random() < 0.25 else NO_WISH
    said_so = said(rng, wish, split) if wish != NO_WISH else None
    place(rng, dialogue, task.asked(rng), said_so, rng.choice(("system", "before", "after")))
    if task.attempt is None and wish == NO_WISH and rng.random() < 0.35:
        wish = Wish(form="plain")
    wish = _settled(rng, task, wish)
    dialogue.assistant(task.done(rng, wish), context=True)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        roll = rng.random()
        if roll < 0.5:
            later = draw_wish(rng, task)
            wish = _merge(wish, later)
            if later.size == "steps" and wish.tone == "curt":
                wish = replace(wish, tone=None)
            objection = said(rng, later, split)
            if rng.random() < 0.2:
                objection += HINT.format(hint=said(rng, later, split))
            dialogue.user(objection)
            dialogue.assistant(task.done(rng, wish))
        elif roll < 0.72:
            dialogue.user(small_talk.thanks(rng))
            dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
        else:
            task = _fresh_task(rng, task, split)
            opening = f"{small_talk.moving_on(rng)} " if rng.random() < 0.5 else ""
            request = opening + task.asked(rng)
            if rng.random() < 0.3:
                later = draw_wish(rng, task)
                wish = _merge(wish, later)
                words = said(rng, later, split)
                hinted = rng.random() < 0.5
                request = request + HINT.format(hint=words) if hinted else f"{words} {request}"
            dialogue.user(request)
            dialogue.assistant(task.done(rng, wish))
    return dialogue


def off_topic(rng: random.Random) -> Dialogue:
    """A message that is no homework, declined; sometimes with a system prompt or in a hinted form."""
    dialogue = Dialogue()
    text, reply = small_talk.off_topic(rng)
    if rng.random() < 0.3:
        dialogue.messages.append({"role": "system", "content": rng.choice(small_talk.SYSTEMS)})
    dialogue.user(text)
    dialogue.assistant(reply)
    return dialogue


def thinking(rng: random.Random, split: Split) -> Dialogue:
    """A problem with thinking on: the equations first, then the reply."""
    task = solve_task(rng, split)
    dialogue = unasked(rng, task) if rng.random() < 0.6 else asked(rng, task, split)
    dialogue.thinking = True
    steps = [step.equation for step in task.problem.steps if step.equation]
    opening = rng.choice(("", "", "Let me compute. ", "The numbers are clear. "))
    dialogue.messages[-1]["reasoning_content"] = opening + ". ".join(steps) + "."
    return dialogue


def tool_call(rng: random.Random, split: Split, usual: bool = False) -> Dialogue:
    """Requests for the calculator, a few in a row: the call, its result, and the answer from it."""
    dialogue = Dialogue(tools=[calculator.schema(rng, usual)])
    for _ in range(rng.choice((1, 2, 3))):
        _tool_round(rng, dialogue, split)
    if rng.random() < 0.15:
        dialogue.user(small_talk.thanks(rng))
        dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
    return dialogue


def _tool_round(rng: random.Random, dialogue: Dialogue, split: Split) -> None:
    wanted = calculator.wanted(rng, solve_task(rng, split).problem)
    request = calculator.request(rng, wanted)
    if dialogue.messages:
        dialogue.user(request)
    else:
        place(rng, dialogue, request, None, "none")
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": wanted.expression}}}
    dialogue.assistant("", tool_calls=[call])
    if rng.random() < 0.06:
        dialogue.messages.append({"role": "tool", "content": rng.choice(("error", "Error: not available", "failed"))})
        dialogue.assistant("The calculator reported an error, so I can't tell.")
        return
    dialogue.messages.append({"role": "tool", "content": calculator.result(rng, wanted)})
    dialogue.assistant(_from_tool(rng, wanted.value))


def _from_tool(rng: random.Random, value: int) -> str:
    if form_of(rng, NO_WISH) == "bold":
        return f"**Calculator:** {value}\n\n**Final answer:** {value}"
    return rng.choice(("The calculator says {v}. The answer is {v}.", "So the answer is {v}.")).format(v=value)


def unneeded_tool(rng: random.Random, split: Split) -> Dialogue:
    """A tool is offered but nobody asks for it: the problem is solved as usual."""
    dialogue = unasked(rng, solve_task(rng, split))
    dialogue.tools = [calculator.schema(rng)]
    return dialogue


def sum_only(rng: random.Random) -> Dialogue:
    """A bare sum instead of a story, with or without a wish."""
    problem = draw_problem(rng)
    equation = next(step.equation for step in problem.steps if step.equation)
    left, _, value = equation.rpartition(" = ")
    dialogue = Dialogue()
    dialogue.user(rng.choice(calculator.QUESTIONS).format(e=left))
    if form_of(rng, NO_WISH) == "bold":
        dialogue.assistant(f"**{equation}**\n\n**Final answer:** {value}")
    else:
        dialogue.assistant(f"{equation}. The answer is {value}.")
    return dialogue


def acting(rng: random.Random, right: float) -> Dialogue:
    """One to five tasks in a row in one of the environments; each succeeds with the probability `right`."""
    env = rng.choice(sorted(actions.SCENES))
    scene = actions.SCENES[env](rng)
    dialogue = Dialogue([*scene.messages, *_went(rng, scene, right)], scene.tools or None)
    for _ in range(rng.randrange(5) if env in actions.SAME_TOOLS else 0):
        scene = actions.SCENES[env](rng)
        dialogue.messages += [scene.messages[-1], *_went(rng, scene, right)]
    return dialogue


def _went(rng: random.Random, scene: actions.Scene, right: float) -> list[Message]:
    return scene.right if rng.random() < right else scene.slip


_MIX: tuple[tuple[Callable[[random.Random], Dialogue], float], ...] = (
    (lambda rng: unasked(rng, solve_task(rng, "train")), 24),
    (lambda rng: unasked(rng, grade_task(rng, "train")), 9),
    (lambda rng: asked(rng, solve_task(rng, "train"), "train"), 23),
    (lambda rng: asked(rng, grade_task(rng, "train"), "train"), 14),
    (lambda rng: chat(rng, solve_task(rng, "train"), "train"), 12),
    (lambda rng: chat(rng, grade_task(rng, "train"), "train"), 6),
    (lambda rng: tool_call(rng, "train"), 7),
    (lambda rng: unneeded_tool(rng, "train"), 1),
    (lambda rng: thinking(rng, "train"), 3),
    (sum_only, 4),
    (off_topic, 3),
)
ACTING = 0.04
"""The share of conversations that act in an environment."""


def dialogue(rng: random.Random, right: float = actions.RIGHT, share: float = ACTING) -> Dialogue:
    """One training conversation of the mix; `share` of them act, and succeed with the probability `right`."""
    if rng.random() < share:
        return acting(rng, right)
    makers = [maker for maker, _ in _MIX]
    return rng.choices(makers, weights=[weight for _, weight in _MIX])[0](rng)
