"""Hints: what the owner's later words would have asked for, had they come in time.

A hint is one or two of the owner's directive sentences, cleaned and short. It is appended to the last user message
of the teacher's prompt with `HINT_TEMPLATE`; one that an environment's checker wrote for its own episode, with
`ENVIRONMENT_TEMPLATE`. Of several candidates the one is used that moves the teacher most (`choose_hint`), or whose
teacher shares most with the policy (`choose_by_overlap`), from which the policy learns most easily.
"""

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import features
from clawrl_trl.judge.provenance import extract_owner_words, neutralise
from clawrl_trl.judge.refusals import DANGEROUS, MAX_HINT, find_refusal
from clawrl_trl.ledger.episodes import HINT_SOURCE
from clawrl_trl.ledger.schema import Message

HINT_TEMPLATE = "\n\n[Hint from the user's later message: {hint}]"
"""Appended to the last user message of the teacher's prompt."""

ENVIRONMENT_TEMPLATE = "\n{hint}"
"""The same for a hint of an environment, which needs no introduction."""

FEW_SENTENCES = 3
"""Most sentences of which a hint takes all."""
OVERLAP_FLOOR = 0.1
"""Least overlap of the teacher's and the response's distributions with which a hint may be used."""

OVERLAP_TOKENS = 4
"""Tokens of the policy at each position on which the overlap is measured."""

_COURTESY = re.compile(
    r"^\W*((thanks?( you)?( a lot| so much| very much)?|thank you"
    r"|thx|(great|good|nice)( (work|job|one|stuff))?|ok(ay)?|fine|hmm*|well|yes|sorry|hi|hello)"
    r"\b[\s,.!:;–-]*)+(but\b|though\b|however\b|yet\b)?[\s,]*",
    re.I,
)
_BULLET = re.compile(r"^(?:\s*[-–*•>]+\s+)+")
_SENDER = re.compile(r"^\s*\[[^\]\n]{1,40}\]:\s")
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?![\w(=/]|\.\w)")
_DIRECTIVE = re.compile(
    r"""
      (?:^|[,;:–—]\s|\b(?:and|but|then|so)\s)                        # a clause that begins with an imperative
      \W{0,20}+(?:(?:no|nope|nearly|almost|oh|hm+|um|ugh|stop|wait|ok(?:ay)?|so|and|but|then|just|also|now|well|sorry|hey|please
        |pls|kindly|actually|again|instead|maybe|perhaps|always|try|(?:next|another)\ time|in\ (?:the\ )?future)\W++)*
      (?:accept|add|answer|ask|avoid|be|begin|book|bring|build|calculate|call|catch|change|check|choose|cite|close|compare
        |convert|count|create|cut|delete|don'?t|do|drop|end|explain|filter|find|fix|follow|format|get|give|go|group
        |hide|import|include|indent|keep|leave|let|limit|link|list|log|look|lose|make|mention|merge|mind|move|name|never|note|open
        |order|pass|paste|pick|plan|point|prefer|print|put|query|quote|raise|read|redo|remove|rename|rephrase|replace|reply|respond
        |return|revert|reword|rewrite|round|run|save|say|search|send|set|shorten|show|simplify|skip|sort|speak|spell
        |split|start|stick|stop|swap|switch|take|talk|tell|test|think|translate|treat|try|turn|undo|update|use|watch
        |wrap|write)\b
    | ^\W*(?:no|not)\ (?!one\b|way\b|problem|idea|clue|thanks|worries|exactly|really|bad\b|sure|quite|even|my|your|it\b
        |that\b|this\b|no\b|what\b)\w+                              # "no bold"
    | \b(?:i|we)\ (?:still\ )?(?:don'?t|do\ not|didn'?t|can'?t|cannot)\ (?:want|like|need|ask|use|hand)\b
    | \b(?:i|we)(?:'d|\ would)?\ (?:still\ )?
      (?:rather|prefer|need(?:ed)?|want(?:ed)?|asked|said|meant|like|only|mean)\b
    | \b(?:looks?|sounds?|reads?|feels?)\ like\ (?:an?\ )?(?:chat\ ?bot|bot|robot|machine|ai)\b | \b\w+\ per\ \w+
    | \b(?:should(?:n't)?|must(?:n't)?|needs?|ha[sd]\ to|have\ to|supposed\ to|ought\ to|w(?:as|ere)\ to|let's)\b
    | \b(?:instead|rather\ than|without|only|except|in\ place\ of|other\ way\ round|opposite)\b
    | \b(?:too|more|less|fewer|bit)\ \w+
    | \b(?:shorter|longer|simpler|softer|warmer|kinder|smaller|bigger|cheaper|earlier|later|clearer|closer|plainer)\b
    | \b(?:can|could|would)\ (?:you|it|we)\b | \b(?:please|pls|plz|kindly)\b
    | ,\ not\ \S | \bnot\ \w+,\s
    | \b(?:would|will)\ do\b | \b(?:how|what)\ about\b
    """,
    re.I | re.X,
)
_GIVING_UP = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it|this)|drop(?:ping)? it|g[ia]ve up|giving up|doesn'?t matter|don'?t bother"
    r"|no use for|i'?ll (?:just )?(?:do|ask|ring|call|fix|write|use|try|find|google|look|figure|handle)\b"
    r"|i'?m (?:asking|calling|done|going to (?:do|ask)))",
    re.I,
)
"""Who gives up tells no wish: what is announced is the owner's own plan."""
_OWN_PLAN = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|so|well|fine|then|and|but)\W+)*(?:i|we)(?:['’]ll| will|['’]m going to)\b", re.I
)
"""What the owner is going to do is nothing that the reply should have done."""
_QUESTION = re.compile(r"\w[\"')]{0,2}\?[\"') .!?]*\Z")
_ASKS_SOMEBODY = re.compile(
    r"\b(?:can|could|would|will|won['’]t|couldn['’]t|how about|what about|please|pls|instead)\b", re.I
)
_RAW_ERROR = re.compile(
    r"""
      ^\W*(?:\w+\.)*\w*(?:Error|Exception|Warning)\b | command\ not\ found | \ATraceback\b | ^\w+:\ \S+:\s
    | ^\W*(?i:error|fatal|panic|warning|failed|failure|uncaught|exception|assertion|aborted|denied|invalid)\b
      [^.!?]{0,30}[:\[(!]
    | (?i:\berr(?:no|or\ code)\b|\bexit(?:ed\ with)?\ (?:code|status):?\ \d)
    | (?i:\bno\ such\ (?:file|table|column|module)\b|\bpermission\ denied\b|\bsegmentation\ fault\b)
    | (?i:\bis\ not\ (?:defined|a\ function|recogni[sz]ed|iterable|subscriptable)\b)
    | (?i:\bcan(?:no|')t\ (?:find|open|resolve|import|read|convert)\ (?:module|file|name|symbol|propert))
    | :\d+:\d+\b | \b(?:line|ln)\ \d+,?\ (?:col|in)\b | \b[A-Z]{2,6}-?\d{3,}\b:? | \b0x[0-9a-fA-F]{4,}
    | \b[45]\d\d\ (?:Bad|Unauthori[sz]ed|Forbidden|Not\ Found|Request|Internal|Service|Gateway|Too\ Many)\b
    """,
    re.X,
)
"""A sentence of a machine's, pasted: what it demands ("must be a string") is no wish of the owner's."""
_RESERVATION = re.compile(r"^(?:but keep|(?:but )?(?:i|we) still)\b|\ball the same\W*$", re.I)
_NEXT_TIME = re.compile(
    r"\b((the )?next (time|one|reply|answer)|another time|in (the )?future|going forward|always|never"
    r"|could (have been|be)|would (have been|be) (nice|better|even|good|great)|(i'd|i would|i) (prefer|rather))\b",
    re.I,
)
_TASK = ("task", "new_task_first")


def extract_hints(
    texts: Iterable[str],
    request: str,
    tool_names: Sequence[str] = (),
    score: float | None = -1.0,
    reply: str = "",
) -> list[str]:
    """Candidate hints out of the owner's words, best first: all of a short message, then its directive sentences.

    There is none where no sentence asks for anything ("that's nonsense", an error's text) or the owner gives up. Of
    the directive sentences, too, all together come first, then the first one and the first two. A later one, often a
    condition ("keep the steps, though"), never stands alone: a teacher that read only the condition would keep what
    was objected to.

    Args:
        texts: The owner's messages or explicit feedback, nothing else (see `provenance`).
        request: What the turn had been asked; a mere repetition of it is no hint.
        tool_names: Names of the request's tools, which a hint may name and not change.
        score: The verdict on the reply. Of an owner who did not object only a wish beside it is a hint: another
            sentence may be the next task.
        reply: The reply that the words are about: one that took care may not be corrected to take less.
    """
    sentences = [sentence for text in texts for sentence in features.split_sentences(extract_owner_words(text))]
    if score is None or score >= 0:
        sentences = [sentence for sentence in sentences if is_wish(sentence)]
    elif any(_GIVING_UP.search(sentence) for sentence in sentences):
        return []
    parts = [clean_sentence(sentence) for sentence in sentences if not _RAW_ERROR.search(sentence)]
    # What stands behind a command that is refused belongs to it: "then try again", "don't ask".
    parts = list(takewhile(lambda part: find_refusal(part, tool_names, reply) not in DANGEROUS, parts))
    parts = [
        part for part in parts if part and not find_refusal(part, tool_names, reply) and not _repeats(request, part)
    ]
    # After a reservation the teacher would hold on to what was objected to: it tells what is to stay.
    parts = [part for part in parts if not _RESERVATION.search(part)] or parts
    directive = [part for part in parts if is_directive(part)]
    hints: list[str] = []
    if directive:
        whole = " ".join(parts)
        # In few sentences all belong together; a longer message tells other things too.
        hints = [whole] if len(parts) <= FEW_SENTENCES and len(whole) <= MAX_HINT else []
        hints += [_join(directive), *(_join(directive[:count]) for count in (1, 2))]
    unique = dict.fromkeys(hint for hint in hints if hint)
    return [hint for hint in unique if find_refusal(hint, tool_names, reply) is None]


def clean_sentence(sentence: str) -> str:
    """A sentence on one line, without the courtesies before it, with a capital and a full stop."""
    text = _BULLET.sub("", _SENDER.sub("", re.sub(r"\s+", " ", sentence))).lstrip(" •>").rstrip(" •")
    # Emphasis goes with both its ends; an asterisk at one end may be code.
    if text.startswith("*"):
        text = text.strip("* ")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    text = _COURTESY.sub("", text, count=1).strip()
    if len(text) > MAX_HINT:
        return ""
    if text and (text[-1].isalnum() or text[-1] in ")]}`\"'"):
        text += "."
    # A name that begins a sentence keeps its case: "foo() is enough".
    return text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) else text


def is_directive(sentence: str) -> bool:
    """Return whether a sentence asks for something about the reply rather than stating or setting a new task."""
    if any(features.CUES[name].search(sentence) for name in _TASK) or _OWN_PLAN.search(sentence):
        return False
    # A question asks for something only if it asks somebody to do it: others are scorn or doubt.
    if _QUESTION.search(sentence) and not _ASKS_SOMEBODY.search(sentence):
        return False
    return bool(_DIRECTIVE.search(sentence))


def is_wish(sentence: str) -> bool:
    """Return whether a sentence says how this reply or the next should have been, beside an approval or alone."""
    directive = is_directive(clean_sentence(sentence)) and not features.is_bare_question(sentence)
    cues = features.CUES
    compares = bool(cues["degree"].search(sentence) and cues["reply"].search(sentence))
    return directive and (compares or bool(_NEXT_TIME.search(sentence) or cues["contrast"].search(sentence)))


def _join(sentences: Sequence[str]) -> str:
    joined = ""
    for sentence in sentences:
        if len(joined) + len(sentence) + 1 <= MAX_HINT:
            joined = f"{joined} {sentence}".strip()
    return joined


def _repeats(request: str, sentence: str) -> bool:
    requested, repeated = (set(re.findall(r"\w+", text.lower())) for text in (request, sentence))
    return bool(repeated) and len(requested & repeated) >= 0.8 * len(repeated)


def choose_template(source: str | None) -> str:
    """The template for hints of that provenance."""
    return ENVIRONMENT_TEMPLATE if source == HINT_SOURCE else HINT_TEMPLATE


def append_hint(messages: Sequence[Mapping[str, Any]], hint: str, template: str = HINT_TEMPLATE) -> list[Message]:
    """The messages with the hint at the end of the last user message; the originals stay as they are.

    Raises:
        ValueError: If there is no user message with text.
    """
    block = template.format(hint=neutralise(hint))
    result = [dict(copy.deepcopy(message)) for message in messages]
    for message in reversed(result):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = content + block
            return result
        texts = [part for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            texts[-1]["text"] += block
            return result
    raise ValueError("no user message to append the hint to")


def estimate_overlap(teacher: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """Estimated overlap of two distributions from tokens sampled of the second.

    The overlap of T and S at a position, sum over tokens of min(T, S), is the mean of min(1, T(a)/S(a)) over
    tokens a drawn from S; here it is averaged over the response's tokens. In (0, 1], 1 when they agree.
    """
    # Clipped before the exponential, which overflows where the teacher likes a token far better.
    return float(np.minimum(1.0, np.exp(np.clip(teacher - plain, -50.0, 0.0))).mean())


def measure_gain(teacher: NDArray[np.float32], plain: NDArray[np.float32], score: float | None = None) -> float:
    """Gain of a hint: mean absolute log-prob gap over the response's tokens.

    Of a response that was turned down it is how much less likely the teacher finds it, below 0 if it likes it better.
    """
    gap = teacher - plain
    return float((np.abs(gap) if score is None or score >= 0 else -gap).mean())


def choose_hint(
    teachers: Sequence[NDArray[np.float32]], plain: NDArray[np.float32], score: float | None = None
) -> int | None:
    """Choose the hint with the largest gain among those whose overlap is at least `OVERLAP_FLOOR`.

    A teacher that shares almost nothing with the response talks about something else: its gap is large on every
    token and says nothing about which of them to change. One that finds a response that was turned down no less likely
    would teach the opposite of the verdict.

    Args:
        teachers: `[T]` log-probs of the response's tokens under each hint.
        plain: `[T]` the same without a hint.
        score: The verdict on the response, if there is one.

    Returns:
        Position in `teachers`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [
        index
        for index, teacher in enumerate(teachers)
        if estimate_overlap(teacher, plain) >= OVERLAP_FLOOR and measure_gain(teacher, plain, score) > 0
    ]
    return max(allowed, key=lambda index: measure_gain(teachers[index], plain, score), default=None)


def measure_overlap(
    policy: Sequence[Mapping[int, float]], teacher: Sequence[Mapping[int, float]], k: int = OVERLAP_TOKENS
) -> float:
    """Probability that two models share on the policy's `k` most likely tokens, averaged over the positions.

    At a position it is the sum of min(P, T) over these tokens as a share of their sum of P: 1 where the teacher finds
    each at least as likely, 0 where it names none of them.

    Args:
        policy: For each position, token id to log-prob under the policy, at least its `k` most likely.
        teacher: The same under the teacher; a token that it does not name counts as impossible.
        k: Tokens per position.
    """
    shares = []
    for student, hinted in zip(policy, teacher, strict=True):
        likely = sorted(student, key=lambda token: (-student[token], token))[:k]
        mass = sum(math.exp(student[token]) for token in likely)
        shared = sum(math.exp(min(student[token], hinted.get(token, -math.inf))) for token in likely)
        shares.append(shared / mass if mass else 0.0)
    return sum(shares) / len(shares) if shares else 0.0


def choose_by_overlap(overlaps: Sequence[float], gains: Sequence[float]) -> int | None:
    """Choose the hint with the largest overlap, at least `OVERLAP_FLOOR`, among those with a gain above 0.

    Returns:
        Position in `overlaps`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [index for index, gain in enumerate(gains) if gain > 0 and overlaps[index] >= OVERLAP_FLOOR]
    return max(allowed, key=lambda index: overlaps[index], default=None)
