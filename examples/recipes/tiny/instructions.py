"""Style instructions in many wordings: drawn by a grammar, with one wording in eight held out.

`draw_instruction(rng, wish, split)` is what the recipe trains on and measures with. A wording is held out by a hash
of its text, so no held-out sentence was ever trained on; `FRESH` goes further: sentences written by hand,
outside the grammar, that are only ever used to measure.
"""

import random
import zlib
from collections.abc import Callable

from clawrl_trl.envs.chat.problems import Split
from recipes.tiny.options import split_options
from recipes.tiny.wishes import PHRASES, Phrases, Wish

_WITHOUT = split_options(
    "use no {x}|avoid {x}|drop the {x}|leave out the {x}|skip the {x}|stop using {x}|lose the {x}|"
    "get rid of the {x}|"
    "remove the {x}|cut the {x}|do it without {x}|write it without {x}|write that without {x}|"
    "answer without {x}|"
    "explain it without {x}|write without {x}|rewrite it without {x}|do that again without {x}|"
    "leave the {x} out|"
    "not use {x}|use fewer {x}|do without the {x}|give it to me without {x}|keep it free of {x}|"
    "take out the {x}|write this without {x}|try it without {x}|phrase it without {x}"
)
_NEGATIVE = split_options(
    "No {x}|No {x}, please|No more {x}|No {x} this time|Don't use {x}|Please don't use {x}|Do not use {x}|"
    "Never use {x}|Enough with the {x}|Without {x}|Without {x}, please|Without the {x}, please|"
    "I don't like {x}|"
    "I don't like the {x}|I do not want {x}|I hate {x}|I hate the {x}|Not a fan of {x}|"
    "I'm not a fan of the {x}|"
    "I find the {x} annoying|I find the {x} distracting|The {x} bother me|I don't need {x}|"
    "I don't need the {x}|"
    "Why all the {x}|Too many {x}|There are too many {x}|Less {x}|Fewer {x}|I could do without the {x}|"
    "Please no {x}|The user dislikes {x}|The reader does not want {x}|Replies must not contain {x}|"
    "{X} are not allowed|"
    "{X} are annoying|{X} are distracting|I am tired of {x}|I can't stand {x}|Don't make it {x}|"
    "Don't turn it into {x}|Please don't write {x}|I don't want it with {x}|Not with {x}|And not as {x}|"
    "Please don't end with {x}|Could we skip {x}"
)
_IN = split_options(
    "write it in {x}|use {x}|answer in {x}|answer with {x}|put it in {x}|give me {x}|"
    "explain it in {x}|say it in {x}|"
    "rewrite it in {x}|rewrite that in {x}|stick to {x}|try {x}|write {x}|reply in {x}|respond in {x}|"
    "do it in {x}|do that again in {x}|write that in {x}|write this in {x}|phrase it in {x}|tell me in {x}|"
    "give it to me in {x}|show it in {x}|explain in {x}|write the answer in {x}|write the reply in {x}|"
    "write the solution in {x}|switch to {x}|make it {x}|keep to {x}|write it as {x}|write that as {x}|"
    "answer as {x}|redo it as {x}|rewrite it as {x}|put it as {x}|turn it into {x}|phrase it as {x}"
)
_POSITIVE = split_options(
    "I prefer {x}|I'd prefer {x}|I want {x}|I'd like {x}|I would like {x}|I'd rather have {x}|"
    "I need {x}|Just {x}|"
    "Just {x}, please|{X}|{X}, please|Only {x}|More like {x}|I like {x}|I like {x} better|"
    "{X} would be better|"
    "{X} would be nicer|I'd prefer it as {x}|I'd like to have it as {x}|Better as {x}|As {x}, please|"
    "The user prefers {x}|The reader wants {x}|Always {x}|Can I have it in {x}|"
    "Could I get that in {x}|How about {x}|What about {x}|Better in {x}|In {x}, please|I was hoping for {x}"
)
_MANNER = split_options(
    "write it {x}|write that {x}|write this {x}|explain it {x}|say it {x}|say that {x}|answer {x}|"
    "tell me {x}|phrase it {x}|"
    "put it {x}|write the answer {x}|write the solution {x}|do it {x}|rewrite it {x}|write {x}|"
    "reply {x}|word it {x}"
)
_ASK = split_options(
    "{B}|{B}|Please {b}|Please {b}|{B}, please|Could you {b}?|Can you {b}?|Could you please {b}?|"
    "Can you please {b}?|"
    "Would you {b}?|Would you please {b}?|I'd like you to {b}|I would like you to {b}|I want you to {b}|"
    "I need you to {b}|You should {b}|Next time {b}|Next time, please {b}|From now on, {b}|"
    "From now on please {b}|Always {b}|"
    "Try to {b}|Please try to {b}|Maybe {b}?|Maybe you could {b}?|It would be nice if you could {b}|"
    "It would help if you could {b}|Remember to {b}|Make sure to {b}|I wish you would {b}|Just {b}|"
    "Can we {b}?|Do me a favor and {b}|For me, {b}|In your replies, {b}|You can {b}|Better {b}|"
    "Would it be possible to {b}?|Is it possible to {b}?|Could we {b}?|Kindly {b}|Now {b}|Instead, {b}"
)
_STATE = split_options(
    "{S}|{S}|{S}|I think {s}|I feel {s}|Honestly, {s}|Sorry, but {s}|Hmm, {s}|{S}, don't you think?|"
    "To me {s}|Well, {s}|"
    "I must say {s}|Again {s}|{S}!|Ugh, {s}|My problem is that {s}|I'm afraid {s}|Sorry, {s}"
)
_SOFTENERS = split_options(
    "Thanks, but |The answer is right, but |Good, but |Correct, but |Nice, but |OK, but |"
    "Right, but |Yes, but |"
    "The result is fine, but |That is correct, but |The math is fine, but |Hm, |Sorry, "
)
_KEEP = split_options(
    ", but keep the steps| but keep the steps| and keep the steps|, with the same steps|"
    ", but still show the steps|"
    ", but show the steps| but keep all the steps| with all the steps|, the steps can stay|"
    ", keeping the steps"
)
_KEEP_SENTENCE = split_options(
    " The steps are fine.| Keep the steps though.| But keep the steps.| Keep the steps, please.|"
    " The steps can stay.|"
    " I still want the steps.| The steps themselves are good."
)


def capitalise(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """`text` with its first letter in lower case, unless it starts with the word I or an abbreviation."""
    keeps = text.startswith(("I ", "I'", "AI")) or text[1:2].isupper()
    return text if keeps else text[:1].lower() + text[1:]


def _make_sentence(text: str) -> str:
    return text if text.endswith(("?", "!", ".")) else f"{text}."


def _fill(pattern: str, phrase: str) -> str:
    bare = phrase.removeprefix("a ") if "the {x}" in pattern or "Too many" in pattern else phrase
    return pattern.replace("{x}", bare).replace("{X}", capitalise(bare))


def _draw_imperative(rng: random.Random, phrases: Phrases) -> str:
    """A bare imperative, e.g. "write it without bold"."""
    makers: list[Callable[[], str]] = []
    if phrases.unwanted:
        makers.append(lambda: _fill(rng.choice(_WITHOUT), rng.choice(phrases.unwanted)))
    if phrases.wanted:
        makers.append(lambda: _fill(rng.choice(_IN), rng.choice(phrases.wanted)))
    if phrases.manners:
        makers.append(lambda: _fill(rng.choice(_MANNER), rng.choice(phrases.manners)))
    if phrases.actions:
        makers.append(lambda: rng.choice(phrases.actions))
        makers.append(lambda: rng.choice(phrases.actions))
    return rng.choice(makers)()


def _draw_request(rng: random.Random, phrases: Phrases, keep: bool) -> str:
    roll = rng.random()
    if roll < 0.58:
        body = _draw_imperative(rng, phrases)
        if rng.random() < 0.15:
            body = f"{body} and {_draw_imperative(rng, phrases)}"
        elif keep and rng.random() < 0.3:
            body += rng.choice(_KEEP)
        ask = rng.choice(_ASK)
        return _make_sentence(ask.replace("{b}", body).replace("{B}", capitalise(body)))
    if roll < 0.8 and phrases.unwanted:
        return _make_sentence(_fill(rng.choice(_NEGATIVE), rng.choice(phrases.unwanted)))
    return _make_sentence(_fill(rng.choice(_POSITIVE), rng.choice(phrases.wanted)))


def _draw_statement(rng: random.Random, phrases: Phrases) -> str:
    said = rng.choice(phrases.complaints)
    return _make_sentence(rng.choice(_STATE).replace("{s}", lower(said)).replace("{S}", capitalise(said)))


def _compose(rng: random.Random, wish: Wish) -> str:
    phrases = PHRASES[wish]
    keep = wish.form is not None  # whichever form it is: "keep the steps" says nothing about that
    roll = rng.random()
    if roll < 0.58:
        text = _draw_request(rng, phrases, keep)
    elif roll < 0.7:
        text = _draw_statement(rng, phrases)
    elif roll < 0.82:
        text = f"{_draw_statement(rng, phrases)} {_draw_request(rng, phrases, keep)}"
    elif roll < 0.88:
        text = f"{_draw_request(rng, phrases, keep)} {_draw_statement(rng, phrases)}"
    elif roll < 0.94:
        text = f"{_draw_request(rng, phrases, keep)} {_draw_request(rng, phrases, keep)}"
    else:
        because = rng.choice((", because ", " because ", ", ", " since ", ": "))
        text = _draw_request(rng, phrases, keep).rstrip(".?!") + because + lower(rng.choice(phrases.complaints)) + "."
    if keep and rng.random() < 0.1:
        text += rng.choice(_KEEP_SENTENCE)
    if rng.random() < 0.15:
        text = rng.choice(_SOFTENERS) + lower(text)
    if rng.random() < 0.08:
        text = text.lower().rstrip(".")
    return text


def draw_instruction(rng: random.Random, wish: Wish, split: Split) -> str:
    """One style instruction, of one or two sentences, that asks for `wish`.

    Args:
        rng: the source of chance.
        wish: a wish with exactly one side set.
        split: "train", or "heldout" for a wording that training never uses.

    Raises:
        KeyError: if `wish` has no side set, or several.
    """
    while True:
        text = _compose(rng, wish)
        if (zlib.crc32(text.lower().encode()) % 8 == 0) == (split == "heldout"):
            return text


FRESH: dict[Wish, tuple[str, ...]] = {
    Wish(form="plain"): (
        "Please write it without bold, in plain sentences, but keep the steps.",
        "Could you explain this the way my older brother would, with no stars in it?",
        "I have to hand this in, so no markdown please, just ordinary sentences.",
        "That bold stuff makes it look like it came from a bot. Write it as normal text?",
        "Same steps, but as a little paragraph and with nothing in bold.",
        "Can you redo this so that it doesn't look machine written? Simple sentences would be best.",
        "The numbering and the asterisks have to go, I want to read it like a story.",
        "My notebook has no bold, so give me the steps as plain sentences.",
        "It screams AI. Put it into human words please.",
        "I asked for help, not for a formatted report. Plain prose next time.",
        "Would you mind skipping the list and the bold and just talking me through it?",
        "Leave the markdown away and write like a normal person.",
    ),
    Wish(form="bold"): (
        "I like it better when the steps are numbered and in bold.",
        "Please set the steps in bold with numbers in front, so I can find them.",
        "Can you make it a numbered list with a bold final answer?",
        "Use markdown with bold labels for each step, please.",
        "This paragraph is hard to scan. Numbered bold steps would help me.",
        "Put the answer at the end in bold letters and number the steps.",
    ),
    Wish(tone="warm"): (
        "Could you be warmer and say specifically what went right?",
        "That's a cold comment for a nine year old. Tell them kindly what they did well.",
        "Please add something encouraging and name the step that was good.",
        "A bare verdict won't help my pupils, be specific and kind about their work.",
        "Can the feedback be friendlier and show exactly where the slip happened?",
        "I'd love a gentle comment that mentions what the pupil got right.",
        "Too harsh! Start with praise and then explain the mistake.",
        "Write it like a caring teacher: warm, personal, with the mistake explained.",
        "The kids need a little hope, so praise the effort and say what to fix.",
        "More heart, please, and tell the student which part of the work was right.",
    ),
    Wish(tone="curt"): (
        "I just need the verdict, nothing else.",
        "No praise and no comments please, only correct or incorrect.",
        "Keep the grading as brief as you can.",
        "Please be concise, the grade alone is enough.",
    ),
}
