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
from recipes.tiny.instructions import draw_instruction
from recipes.tiny.replies import Attempt, choose_form, make_attempt, write_grading, write_solution
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

    def word_request(self, rng: random.Random) -> str:
        """The request in the user's words."""
        if self.attempt is None:
            return rng.choice(small_talk.SOLVE_FRAMES).format(q=self.problem.question)
        text = small_talk.draw_grade_frame(rng).format(
            q=self.problem.question, a=self.problem.answer, w=self.attempt.work
        )
        return (
            text
            if rng.random() < 0.7
            else text.replace(" Correct answer", "\nCorrect answer").replace(
                " The student wrote", "\nThe student wrote"
            )
        )

    def write_reply(self, rng: random.Random, wish: Wish) -> str:
        """The reply that `wish` asks for."""
        if self.attempt is None:
            return write_solution(rng, self.problem, wish)
        return write_grading(rng, self.problem, self.attempt, wish)


def draw_solve_task(rng: random.Random, split: Split) -> Task:
    """A problem of `split` to solve."""
    while True:
        problem = draw_problem(rng)
        if assign_split(problem.question) == split:
            return Task(problem)


def draw_grade_task(rng: random.Random, split: Split) -> Task:
    """A problem of `split` with a student's attempt, right half of the time."""
    problem = draw_solve_task(rng, split).problem
    return Task(problem, make_attempt(rng, problem, rng.random() < 0.5))


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


def word_wish(rng: random.Random, wish: Wish, split: Split) -> str:
    """`wish` in words: an instruction for each side that it sets."""
    sides = [Wish(form=wish.form), Wish(size=wish.size), Wish(tone=wish.tone)]
    return " ".join(draw_instruction(rng, side, split) for side in sides if side != NO_WISH)


def _add_fillers(rng: random.Random, text: str) -> str:
    if rng.random() < 0.12:
        text = f"{rng.choice(small_talk.FILLERS)} {text}"
    if rng.random() < 0.08:
        text = f"{text} {rng.choice(small_talk.FILLERS)}"
    if rng.random() < 0.2:
        text = f"{text} {rng.choice(small_talk.CLOSINGS)}"
    return text


def add_request(rng: random.Random, dialogue: Dialogue, request: str, words: str | None, where: str) -> None:
    """Append the user's request with an instruction in its place.

    Args:
        rng: the source of chance.
        dialogue: its first message may become a system prompt.
        request: the request in the user's words.
        said_so: the instruction, or None.
        where: "system", "before", "after", "hint" (as the judge appends it) or "none".
    """
    system = rng.choice(small_talk.SYSTEMS) if rng.random() < 0.25 else None
    request = _add_fillers(rng, request)
    if words is not None:
        gap = rng.choice((" ", " ", "\n", "\n\n"))
        if where == "system":
            system = words if rng.random() < 0.4 else f"{rng.choice(small_talk.SYSTEMS)} {words}"
        elif where == "before":
            request = f"{words}{gap}{request}"
        elif where == "after":
            request = f"{request}{gap}{words}"
        elif where == "hint":
            request += HINT.format(hint=words)
    if system is not None:
        dialogue.messages.insert(0, {"role": "system", "content": system})
    dialogue.user(request)


def make_unasked(rng: random.Random, task: Task) -> Dialogue:
    """A first request without any style instruction; at times with a hint that asks for nothing."""
    dialogue = Dialogue()
    hint = small_talk.draw_thanks(rng) if rng.random() < 0.03 else None
    add_request(rng, dialogue, task.word_request(rng), hint, "hint")
    dialogue.assistant(task.write_reply(rng, NO_WISH))
    return dialogue


WHERE = ("system", "before", "after", "hint")


def make_asked(
    rng: random.Random, task: Task, split: Split, wish: Wish | None = None, where: str | None = None
) -> Dialogue:
    """A first request with a style instruction somewhere in the prompt."""
    dialogue = Dialogue()
    if wish is None:
        wish = draw_wish(rng, task)
        if task.attempt is None and wish.form == "plain" and rng.random() < 0.1:
            wish = replace(wish, size=rng.choice(("short", "steps")))
    where = where or rng.choices(WHERE, weights=(22, 14, 20, 44))[0]
    add_request(rng, dialogue, task.word_request(rng), word_wish(rng, wish, split), where)
    dialogue.assistant(task.write_reply(rng, wish))
    return dialogue


def _settle_wish(rng: random.Random, task: Task, wish: Wish) -> Wish:
    """`wish` with the model's habit written out, so that a chat keeps the style it began with."""
    if task.attempt is None:
        return replace(wish, form=choose_form(rng, wish))
    if wish == NO_WISH:
        return Wish(tone="warm" if rng.random() < 0.3 else "curt")
    return wish


def _draw_similar_task(rng: random.Random, task: Task, split: Split) -> Task:
    return draw_solve_task(rng, split) if task.attempt is None else draw_grade_task(rng, split)


def make_chat(rng: random.Random, task: Task, split: Split) -> Dialogue:
    """Several turns: objections and rewrites, thanks, moving on; the style last agreed on is kept."""
    dialogue = Dialogue()
    wish = draw_wish(rng, task) if rng.random() < 0.25 else NO_WISH
    words = word_wish(rng, wish, split) if wish != NO_WISH else None
    add_request(rng, dialogue, task.word_request(rng), words, rng.choice(("system", "before", "after")))
    if task.attempt is None and wish == NO_WISH and rng.random() < 0.35:
        wish = Wish(form="plain")
    wish = _settle_wish(rng, task, wish)
    dialogue.assistant(task.write_reply(rng, wish), context=True)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        roll = rng.random()
        if roll < 0.5:
            later = draw_wish(rng, task)
            wish = _merge(wish, later)
            if later.size == "steps" and wish.tone == "curt":
                wish = replace(wish, tone=None)
            objection = word_wish(rng, later, split)
            if rng.random() < 0.2:
                objection += HINT.format(hint=word_wish(rng, later, split))
            dialogue.user(objection)
            dialogue.assistant(task.write_reply(rng, wish))
        elif roll < 0.72:
            dialogue.user(small_talk.draw_thanks(rng))
            dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
        else:
            task = _draw_similar_task(rng, task, split)
            opening = f"{small_talk.draw_moving_on(rng)} " if rng.random() < 0.5 else ""
            request = opening + task.word_request(rng)
            if rng.random() < 0.3:
                later = draw_wish(rng, task)
                wish = _merge(wish, later)
                words = word_wish(rng, later, split)
                hinted = rng.random() < 0.5
                request = request + HINT.format(hint=words) if hinted else f"{words} {request}"
            dialogue.user(request)
            dialogue.assistant(task.write_reply(rng, wish))
    return dialogue


def make_off_topic(rng: random.Random) -> Dialogue:
    """A message that is no homework, declined; sometimes with a system prompt or in a hinted form."""
    dialogue = Dialogue()
    text, reply = small_talk.draw_off_topic(rng)
    if rng.random() < 0.3:
        dialogue.messages.append({"role": "system", "content": rng.choice(small_talk.SYSTEMS)})
    dialogue.user(text)
    dialogue.assistant(reply)
    return dialogue


def make_thinking(rng: random.Random, split: Split) -> Dialogue:
    """A problem with thinking on: the equations first, then the reply."""
    task = draw_solve_task(rng, split)
    dialogue = make_unasked(rng, task) if rng.random() < 0.6 else make_asked(rng, task, split)
    dialogue.thinking = True
    steps = [step.equation for step in task.problem.steps if step.equation]
    opening = rng.choice(("", "", "Let me compute. ", "The numbers are clear. "))
    dialogue.messages[-1]["reasoning_content"] = opening + ". ".join(steps) + "."
    return dialogue


def make_tool_call(rng: random.Random, split: Split, usual: bool = False) -> Dialogue:
    """Requests for the calculator, a few in a row: the call, its result, and the answer from it."""
    dialogue = Dialogue(tools=[calculator.make_schema(rng, usual)])
    for _ in range(rng.choice((1, 2, 3))):
        _add_tool_round(rng, dialogue, split)
    if rng.random() < 0.15:
        dialogue.user(small_talk.draw_thanks(rng))
        dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
    return dialogue


def _add_tool_round(rng: random.Random, dialogue: Dialogue, split: Split) -> None:
    request = calculator.draw_request(rng, draw_solve_task(rng, split).problem)
    question = calculator.word_request(rng, request)
    if dialogue.messages:
        dialogue.user(question)
    else:
        add_request(rng, dialogue, question, None, "none")
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": request.expression}}}
    dialogue.assistant("", tool_calls=[call])
    if rng.random() < 0.06:
        dialogue.messages.append({"role": "tool", "content": rng.choice(("error", "Error: not available", "failed"))})
        dialogue.assistant("The calculator reported an error, so I can't tell.")
        return
    dialogue.messages.append({"role": "tool", "content": calculator.word_result(rng, request)})
    dialogue.assistant(_word_tool_answer(rng, request.value))


def _word_tool_answer(rng: random.Random, value: int) -> str:
    if choose_form(rng, NO_WISH) == "bold":
        return f"**Calculator:** {value}\n\n**Final answer:** {value}"
    return rng.choice(("The calculator says {v}. The answer is {v}.", "So the answer is {v}.")).format(v=value)


def make_unneeded_tool(rng: random.Random, split: Split) -> Dialogue:
    """A tool is offered but nobody asks for it: the problem is solved as usual."""
    dialogue = make_unasked(rng, draw_solve_task(rng, split))
    dialogue.tools = [calculator.make_schema(rng)]
    return dialogue


def make_sum(rng: random.Random) -> Dialogue:
    """A bare sum instead of a story, with or without a wish."""
    problem = draw_problem(rng)
    equation = next(step.equation for step in problem.steps if step.equation)
    expression, _, value = equation.rpartition(" = ")
    dialogue = Dialogue()
    dialogue.user(rng.choice(calculator.QUESTIONS).format(e=expression))
    if choose_form(rng, NO_WISH) == "bold":
        dialogue.assistant(f"**{equation}**\n\n**Final answer:** {value}")
    else:
        dialogue.assistant(f"{equation}. The answer is {value}.")
    return dialogue


def make_acting(rng: random.Random, right: float) -> Dialogue:
    """One to five tasks in a row in one of the environments; each succeeds with the probability `right`."""
    env = rng.choice(sorted(actions.SCENES))
    scene = actions.SCENES[env](rng)
    dialogue = Dialogue([*scene.messages, *_choose_outcome(rng, scene, right)], scene.tools or None)
    for _ in range(rng.randrange(5) if env in actions.SAME_TOOLS else 0):
        scene = actions.SCENES[env](rng)
        dialogue.messages += [scene.messages[-1], *_choose_outcome(rng, scene, right)]
    return dialogue


def _choose_outcome(rng: random.Random, scene: actions.Scene, right: float) -> list[Message]:
    return scene.right if rng.random() < right else scene.slip


_MIX: tuple[tuple[Callable[[random.Random], Dialogue], float], ...] = (
    (lambda rng: make_unasked(rng, draw_solve_task(rng, "train")), 24),
    (lambda rng: make_unasked(rng, draw_grade_task(rng, "train")), 9),
    (lambda rng: make_asked(rng, draw_solve_task(rng, "train"), "train"), 23),
    (lambda rng: make_asked(rng, draw_grade_task(rng, "train"), "train"), 14),
    (lambda rng: make_chat(rng, draw_solve_task(rng, "train"), "train"), 12),
    (lambda rng: make_chat(rng, draw_grade_task(rng, "train"), "train"), 6),
    (lambda rng: make_tool_call(rng, "train"), 7),
    (lambda rng: make_unneeded_tool(rng, "train"), 1),
    (lambda rng: make_thinking(rng, "train"), 3),
    (make_sum, 4),
    (make_off_topic, 3),
)
ACTING = 0.04
"""The share of conversations that act in an environment."""


def dialogue(rng: random.Random, right: float = actions.RIGHT, share: float = ACTING) -> Dialogue:
    """One training conversation of the mix; `share` of them act, and succeed with the probability `right`."""
    if rng.random() < share:
        return make_acting(rng, right)
    makers = [maker for maker, _ in _MIX]
    return rng.choices(makers, weights=[weight for _, weight in _MIX])[0](rng)
