"""Measurements of the tiny model: prompts it has never seen, and what a good reply to each must satisfy.

A case may serve several measures at once: a first reply is checked for its answer and counted for its style.
Problems and instruction wordings are held out; the wordings of `FRESH` are outside the grammar altogether.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clawrl_trl.envs.base.message import read_action
from recipes.tiny import actions, dialogues, small_talk
from recipes.tiny.dialogues import HINT, Dialogue, Task
from recipes.tiny.instructions import FRESH
from recipes.tiny.render import render_reply
from recipes.tiny.replies import write_grading, write_solution
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


def _name_wish(wish: Wish) -> str:
    return str(wish.form or wish.size or wish.tone)


def _prompt(dialogue: Dialogue) -> Dialogue:
    return Dialogue(dialogue.messages[:-1], dialogue.tools, dialogue.thinking)


def _check_answer(task: Task) -> Check:
    return lambda text: last_number(text) == task.problem.answer


def _check_verdict(task: Task) -> Check:
    right = task.attempt is not None and task.attempt.slip is None
    return lambda text: verdict(text) == right


def _restrict_to_bold(check: Check) -> Check:
    return lambda text: check(text) if "*" in text else None


def _check_equal(expected: str) -> Check:
    return lambda text: text == expected


def _check_number(value: int) -> Check:
    return lambda text: last_number(text) == value


def generate_solving(rng: random.Random) -> Iterator[Case]:
    """First requests to solve, without an instruction."""
    while True:
        task = dialogues.draw_solve_task(rng, "heldout")
        answers = _check_answer(task)
        yield Case(
            _prompt(dialogues.make_unasked(rng, task)),
            {
                "solve: correct": answers,
                "solve: correct when bold": _restrict_to_bold(answers),
                "solve: plain by itself": lambda text: "*" not in text,
                "solve: one style throughout": lambda text: is_bold(text) or is_plain(text),
            },
        )


def generate_grading(rng: random.Random) -> Iterator[Case]:
    """First requests to grade, without an instruction."""
    while True:
        task = dialogues.draw_grade_task(rng, "heldout")
        yield Case(
            _prompt(dialogues.make_unasked(rng, task)),
            {
                "grade: verdict right": _check_verdict(task),
                "grade: warm by itself": lambda text: not is_curt(text),
                "grade: one style throughout": lambda text: is_curt(text) or is_warm(text),
            },
        )


def _task(rng: random.Random, wish: Wish) -> Task:
    return dialogues.draw_grade_task(rng, "heldout") if wish.tone else dialogues.draw_solve_task(rng, "heldout")


def _check_correct(task: Task) -> Check:
    return _check_verdict(task) if task.attempt else _check_answer(task)


def generate_instructed(rng: random.Random, wish: Wish, where: str) -> Iterator[Case]:
    """Requests with a held-out wording of `wish` at that place."""
    while True:
        task = _task(rng, wish)
        checks = {
            f"told {_name_wish(wish)} ({where})": FOLLOWS[wish],
            f"told {_name_wish(wish)}: correct": _check_correct(task),
        }
        yield Case(_prompt(dialogues.make_asked(rng, task, "heldout", wish, where)), checks)


def generate_fresh_wordings(rng: random.Random, wish: Wish, where: str) -> Iterator[Case]:
    """Requests with a wording from outside the grammar."""
    while True:
        for words in FRESH[wish]:
            task = _task(rng, wish)
            dialogue = Dialogue()
            dialogues.add_request(rng, dialogue, task.word_request(rng), words, where)
            yield Case(dialogue, {f"fresh wording, {_name_wish(wish)}": FOLLOWS[wish]})


def _begin_dialogue(rng: random.Random, task: Task, wish: Wish) -> Dialogue:
    dialogue = Dialogue()
    dialogues.add_request(rng, dialogue, task.word_request(rng), None, "none")
    reply = (
        write_grading(rng, task.problem, task.attempt, wish)
        if task.attempt
        else write_solution(rng, task.problem, wish)
    )
    dialogue.assistant(reply)
    return dialogue


def generate_objections(rng: random.Random, wish: Wish) -> Iterator[Case]:
    """Second turns: the first reply was in the other style and the user objects."""
    opposite = {"plain": Wish(form="bold"), "bold": Wish(form="plain"), "warm": Wish(tone="curt")}[_name_wish(wish)]
    while True:
        task = _task(rng, wish)
        dialogue = _begin_dialogue(rng, task, opposite)
        fresh_words = rng.random() < 0.3
        dialogue.user(rng.choice(FRESH[wish]) if fresh_words else dialogues.word_wish(rng, wish, "heldout"))
        follows, correct = FOLLOWS[wish], _check_correct(task)
        yield Case(
            dialogue,
            {
                f"objection: rewritten {_name_wish(wish)}": follows,
                "objection: still correct": correct,
            },
        )


def generate_style_kept(rng: random.Random) -> Iterator[Case]:
    """Third turns: the style was approved, and a new problem comes."""
    while True:
        task = dialogues.draw_solve_task(rng, "heldout")
        plain = rng.random() < 0.5
        dialogue = _begin_dialogue(rng, task, Wish(form="plain" if plain else "bold"))
        dialogue.user(small_talk.draw_thanks(rng))
        dialogue.assistant(rng.choice(small_talk.ACKNOWLEDGEMENTS))
        following = dialogues.draw_solve_task(rng, "heldout")
        dialogue.user(following.word_request(rng))
        yield Case(
            dialogue,
            {
                "next problem: style kept": is_plain if plain else is_bold,
                "next problem: correct": _check_answer(following),
            },
        )


def generate_thanks(rng: random.Random) -> Iterator[Case]:
    """Second turns: the user says thanks."""
    while True:
        grade = rng.random() < 0.4
        task = dialogues.draw_grade_task(rng, "heldout") if grade else dialogues.draw_solve_task(rng, "heldout")
        dialogue = _begin_dialogue(rng, task, NO_WISH)
        dialogue.user(small_talk.draw_thanks(rng))
        yield Case(dialogue, {"thanks: acknowledged": lambda text: len(text.split()) <= 12 and is_plain(text)})


_CALL = re.compile(r'^<tool_call>\n\{"name": "calculator", "arguments": \{"expression": "[^"]+"\}\}\n</tool_call>$')


def generate_tool_calls(rng: random.Random) -> Iterator[Case]:
    """Requests for the calculator; the call must be well formed and ask for the right thing."""
    while True:
        whole = dialogues.make_tool_call(rng, "heldout", usual=True)
        turn = next(i for i, message in enumerate(whole.messages) if message["role"] == "assistant")
        function = whole.messages[turn]["tool_calls"][0]["function"]
        expression = function["arguments"]["expression"]
        call = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        yield Case(
            Dialogue(whole.messages[:turn], whole.tools),
            {
                "tool: call well formed": lambda text: bool(_CALL.match(text)),
                "tool: right expression": _check_equal(call),
            },
        )


def generate_tool_results(rng: random.Random) -> Iterator[Case]:
    """The calculator has answered; the reply must say what it said."""
    for case in generate_tool_calls(rng):
        dialogue = case.prompt
        value = rng.randint(2, 2000)
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": f"{value - 1}+1"}}}
        dialogue.assistant("", tool_calls=[call])
        dialogue.messages.append({"role": "tool", "content": str(value)})
        yield Case(dialogue, {"tool: result reported": _check_number(value)})


def generate_thoughts(rng: random.Random) -> Iterator[Case]:
    """Problems with thinking on."""
    while True:
        task = dialogues.draw_solve_task(rng, "heldout")
        dialogue = _prompt(dialogues.make_unasked(rng, task))
        dialogue.thinking = True
        answers = _check_answer(task)
        yield Case(
            dialogue,
            {
                "thinking: well formed": lambda text: bool(re.match(r"<think>\n.+\n</think>\n\n\S", text, re.DOTALL)),
                "thinking: correct": answers,
            },
        )


def generate_off_topic(rng: random.Random) -> Iterator[Case]:
    """Messages that are no homework."""
    while True:
        yield Case(
            _prompt(dialogues.make_off_topic(rng)),
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


def generate_actions(rng: random.Random, env: str) -> Iterator[Case]:
    """First actions in an environment."""
    while True:
        scene = actions.SCENES[env](rng)
        yield Case(
            Dialogue(scene.messages, scene.tools or None),
            {
                f"{env}: well formed": _is_action(bool(scene.tools)),
                f"{env}: right at times": _check_equal(render_reply(scene.right[0])),
            },
        )


def add_hint(dialogue: Dialogue, hint: str) -> Dialogue:
    """The same prompt with the judge's hint block on its last message."""
    *before, last = dialogue.messages
    return Dialogue([*before, {**last, "content": last["content"] + HINT.format(hint=hint)}], dialogue.tools)


def make_all_cases(seed: int, count: int) -> list[Case]:
    """`count` cases for every measure (split over the places of an instruction), seeded."""
    rng = random.Random(f"{seed}-measures")
    plain, bold, warm, curt = Wish(form="plain"), Wish(form="bold"), Wish(tone="warm"), Wish(tone="curt")
    sources: list[tuple[Iterator[Case], float]] = [(generate_solving(rng), 2), (generate_grading(rng), 2)]
    sources += [(generate_instructed(rng, wish, where), 1) for wish in (plain, warm) for where in dialogues.WHERE]
    others = (bold, curt, Wish(size="short"), Wish(size="steps"))
    sources += [(generate_instructed(rng, wish, where), 0.5) for wish in others for where in ("system", "hint")]
    sources += [
        (generate_fresh_wordings(rng, wish, where), 0.5) for wish in (plain, warm) for where in ("hint", "after")
    ]
    sources += [(generate_fresh_wordings(rng, wish, "hint"), 0.5) for wish in (bold, curt)]
    sources += [(generate_objections(rng, wish), 1) for wish in (plain, warm)] + [
        (generate_objections(rng, bold), 0.5)
    ]
    sources += [
        (maker(rng), 1)
        for maker in (
            generate_style_kept,
            generate_thanks,
            generate_tool_calls,
            generate_tool_results,
            generate_thoughts,
            generate_off_topic,
        )
    ]
    sources += [(generate_actions(rng, env), 1) for env in sorted(actions.SCENES)]
    return [next(source) for source, share in sources for _ in range(max(1, round(count * share)))]
