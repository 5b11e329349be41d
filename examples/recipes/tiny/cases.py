"""Measurements of the tiny model: prompts it has never seen, and what a good reply to each must satisfy.

A case may serve several measures at once: a first reply is checked for its answer and counted for its style.
Problems and instruction wordings are held out; the `fresh` wordings are outside the grammar altogether.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clawrl_trl.envs.base.message import read_action
from recipes.tiny import actions, dialogues, small_talk
from recipes.tiny.dialogues import HINT, Dialogue, Task
from recipes.tiny.instructions import FRESH
from recipes.tiny.render import reply
from recipes.tiny.replies import grading, solution
from recipes.tiny.wishes import NO_WISH, Wish

Check = Callable[[str], bool | None]


@dataclass(frozen=True)
class Case:
    """A prompt (a dialogue that ends before the reply) and its checks by measure; None means "does not count"."""

    prompt: Dialogue
    checks: dict[str, Check]


def last_number(text: str) -> int | None:
    """The last integer in `text`."""
    numbers = re.findall(r"-?\d+", text)
    return int(numbers[-1]) if numbers else None


def is_bold(text: str) -> bool:
    """A solution in the default style: bold, with a bold final answer."""
    return text.count("**") >= 4 and "**Final answer:**" in text


def is_plain(text: str) -> bool:
    """Sentences: no markdown, no numbered lines, no colon labels."""
    return bool(text.strip()) and not re.search(r"[*#_`]|^\s*\d+[.)]\s|^Step \d", text, re.MULTILINE)


def is_warm(text: str) -> bool:
    """A grading that is specific (names an equation) and longer than a verdict, without markdown."""
    return is_plain(text) and len(text.split()) >= 10 and bool(re.search(r"\d+ [-+x/] \d+ = \d+", text))


def is_curt(text: str) -> bool:
    """A bare verdict."""
    return len(text.split()) <= 9


def verdict(text: str) -> bool | None:
    """Return whether a grading calls the work correct; None if it says neither."""
    words = re.findall(r"\b(incorrect|correct)\b", text.lower())
    return words[0] == "correct" if words else None


FOLLOWS: dict[Wish, Check] = {
    Wish(form="plain"): is_plain,
    Wish(form="bold"): is_bold,
    Wish(size="short"): lambda text: len(text.split()) <= 22 and "Step" not in text and "**1.**" not in text,
    Wish(size="steps"): lambda text: len(text.split()) >= 12,
    Wish(tone="warm"): is_warm,
    Wish(tone="curt"): is_curt,
}


def _name(wish: Wish) -> str:
    return str(wish.form or wish.size or wish.tone)


def _prompt(dialogue: Dialogue) -> Dialogue:
    return Dialogue(dialogue.messages[:-1], dialogue.tools, dialogue.thinking)


def _answers(task: Task) -> Check:
    return lambda text: last_number(text) == task.problem.answer


def _judges(task: Task) -> Check:
    right = task.attempt is not None and task.attempt.slip is None
    return lambda text: verdict(text) == right


def _when_bold(check: Check) -> Check:
    return lambda text: check(text) if "*" in text else None


def _equals(wanted: str) -> Check:
    return lambda text: text == wanted


def _reports(value: int) -> Check:
    return lambda text: last_number(text) == value


def unasked(rng: random.Random) -> Iterator[Case]:
    """First requests to solve, without an instruction."""
    while True:
        task = dialogues.solve_task(rng, "heldout")
        answers = _answers(task)
        yield Case(
            _prompt(dialogues.unasked(rng, task)),
            {
                "solve: correct": answers,
                "solve: correct when bold": _when_bold(answers),
                "solve: plain by itself": lambda text: "*" not in text,
                "solve: one style throughout": lambda text: is_bold(text) or is_plain(text),
            },
        )


def ungraded(rng: random.Random) -> Iterator[Case]:
    """First requests to grade, without an instruction."""
    while True:
        task = dialogues.grade_task(rng, "heldout")
        yield Case(
            _prompt(dialogues.unasked(rng, task)),
            {
                "grade: verdict right": _judges(task),
                "grade: warm by itself": lambda text: not is_curt(text),
                "grade: one style throughout": lambda text: is_curt(text) or is_warm(text),
            },
        )


def _task(rng: random.Random, wish: Wish) -> Task:
    return dialogues.grade_task(rng, "heldout") if wish.tone else dialogues.solve_task(rng, "heldout")


def _correct(task: Task) -> Check:
    return _judges(task) if task.attempt else _answers(task)


def told(rng: random.Random, wish: Wish, where: str) -> Iterator[Case]:
    """Requests with a held-out wording of `wish` at that place."""
    while True:
        task = _task(rng, wish)
        checks = {
            f"told {_name(wish)} ({where})": FOLLOWS[wish],
            f"told {_name(wish)}: correct": _correct(task),
        }
        yield Case(_prompt(dialogues.asked(rng, task, "heldout", wish, where)), checks)


def fresh(rng: random.Random, wish: Wish, where: str) -> Iterator[Case]:
    """Requests with a wording from outside the grammar."""
    while True:
        for words in FRESH[wish]:
            task = _task(rng, wish)
            dialogue = Dialogue()
            dialogues.place(rng, dialogue, task.asked(rng), words, where)
            yield Case(dialogue, {f"fresh wording, {_name(wish)}": FOLLOWS[wish]})


def _begun(rng: random.Random, task: Task, wish: Wish) -> Dialogue:
    dialogue = Dialogue()
    dialogues.place(rng, dialogue, task.asked(rng), None, "none")
    reply = grading(rng, task.problem, task.attempt, wish) if task.attempt else solution(rng, task.problem, wish)
    dialogue.assistant(reply)
    return dialogue


def objections(rng: random.Random, wish: Wish) -> Iterator[Case]:
    """Second turns: the first reply was in the other style and the user objects."""
    other = {"plain": Wish(form="bold"), "bold": Wish(form="plain"), "warm": Wish(tone="curt")}[_name(wish)]
    while True:
        task = _task(rng, wish)
        dialogue = _begun(rng, task, other)
        fresh_words = rng.random() < 0.3
        dialogue.user(rng.choice(FRESH[wish]) if fresh_words else dialogues.said(rng, wish, "heldout"))
        follows, correct = FOLLOWS[wish], _correct(task)
        yield Case(
            dialogue,
            {
                f"objection: rewritten {_name(wish)}": follows,
                "objection: still correct": correct,
            },
        )


def kept(rng: random.Random) -> Iterator[Case]:
    """Third turns: the style was approved, and a new problem comes."""
    while True:
        task = dialogues.solve_task(rng, "heldout")
        plain = rng.random() < 0.5
        dialogue = _begun(rng, task, Wish(form="plain" if plain else "bold"))
        dialogue.user(small_talk.thanks(rng))
        dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
        following = dialogues.solve_task(rng, "heldout")
        dialogue.user(following.asked(rng))
        yield Case(
            dialogue,
            {
                "next problem: style kept": is_plain if plain else is_bold,
                "next problem: correct": _answers(following),
            },
        )


def thanked(rng: random.Random) -> Iterator[Case]:
    """Second turns: the user says thanks."""
    while True:
        grade = rng.random() < 0.4
        task = dialogues.grade_task(rng, "heldout") if grade else dialogues.solve_task(rng, "heldout")
        dialogue = _begun(rng, task, NO_WISH)
        dialogue.user(small_talk.thanks(rng))
        yield Case(dialogue, {"thanks: acknowledged": lambda text: len(text.split()) <= 12 and is_plain(text)})


_CALL = re.compile(r'^<tool_call>\n\{"name": "calculator", "arguments": \{"expression": "[^"]+"\}\}\n</tool_call>$')


def tools(rng: random.Random) -> Iterator[Case]:
    """Requests for the calculator; the call must be well formed and ask for the right thing."""
    while True:
        whole = dialogues.tool_call(rng, "heldout", usual=True)
        turn = next(i for i, message in enumerate(whole.messages) if message["role"] == "assistant")
        function = whole.messages[turn]["tool_calls"][0]["function"]
        expression = function["arguments"]["expression"]
        call = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        yield Case(
            Dialogue(whole.messages[:turn], whole.tools),
            {
                "tool: call well formed": lambda text: bool(_CALL.match(text)),
                "tool: right expression": _equals(call),
            },
        )


def tool_results(rng: random.Random) -> Iterator[Case]:
    """The calculator has answered; the reply must say what it said."""
    for case in tools(rng):
        dialogue = case.prompt
        value = rng.randint(2, 2000)
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": f"{value - 1}+1"}}}
        dialogue.assistant("", tool_calls=[call])
        dialogue.messages.append({"role": "tool", "content": str(value)})
        yield Case(dialogue, {"tool: result reported": _reports(value)})


def thoughts(rng: random.Random) -> Iterator[Case]:
    """Problems with thinking on."""
    while True:
        task = dialogues.solve_task(rng, "heldout")
        dialogue = _prompt(dialogues.unasked(rng, task))
        dialogue.thinking = True
        answers = _answers(task)
        yield Case(
            dialogue,
            {
                "thinking: well formed": lambda text: bool(re.match(r"<think>\n.+\n</think>\n\n\S", text, re.DOTALL)),
                "thinking: correct": answers,
            },
        )


def off_topics(rng: random.Random) -> Iterator[Case]:
    """Messages that are no homework."""
    while True:
        yield Case(
            _prompt(dialogues.off_topic(rng)),
            {"off topic: says what it can do": lambda text: "arithmetic" in text and len(text.split()) < 20},
        )


_BLOCK = re.compile(r"```bash\n[^`]+\n```")


def _is_action(tools: bool) -> Check:
    """Return whether a reply is one action, a bash block or a tool call, with no more than a line before the call."""

    def check(text: str) -> bool:
        if not tools:
            return bool(_BLOCK.fullmatch(text))
        action = read_action(text)
        return len(action.calls) == 1 and not action.fault and "\n" not in action.text

    return check


def acts(rng: random.Random, env: str) -> Iterator[Case]:
    """First actions in an environment."""
    while True:
        scene = actions.SCENES[env](rng)
        yield Case(
            Dialogue(scene.messages, scene.tools or None),
            {
                f"{env}: well formed": _is_action(bool(scene.tools)),
                f"{env}: right at times": _equals(reply(scene.right[0])),
            },
        )


def hinted(dialogue: Dialogue, hint: str) -> Dialogue:
    """The same prompt with the judge's hint block on its last message."""
    *before, last = dialogue.messages
    return Dialogue([*before, {**last, "content": last["content"] + HINT.format(hint=hint)}], dialogue.tools)


def all_cases(seed: int, count: int) -> list[Case]:
    """`count` cases for every measure (split over the places of an instruction), seeded."""
    rng = random.Random(f"{seed}-measures")
    plain, bold, warm, curt = Wish(form="plain"), Wish(form="bold"), Wish(tone="warm"), Wish(tone="curt")
    sources: list[tuple[Iterator[Case], float]] = [(unasked(rng), 2), (ungraded(rng), 2)]
    sources += [(told(rng, wish, where), 1) for wish in (plain, warm) for where in dialogues.WHERE]
    others = (bold, curt, Wish(size="short"), Wish(size="steps"))
    sources += [(told(rng, wish, where), 0.5) for wish in others for where in ("system", "hint")]
    sources += [(fresh(rng, wish, where), 0.5) for wish in (plain, warm) for where in ("hint", "after")]
    sources += [(fresh(rng, wish, "hint"), 0.5) for wish in (bold, curt)]
    sources += [(objections(rng, wish), 1) for wish in (plain, warm)] + [(objections(rng, bold), 0.5)]
    sources += [(maker(rng), 1) for maker in (kept, thanked, tools, tool_results, thoughts, off_topics)]
    sources += [(acts(rng, env), 1) for env in sorted(actions.SCENES)]
    return [next(source) for source, share in sources for _ in range(max(1, round(count * share)))]
