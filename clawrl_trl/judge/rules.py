"""The judge that asks no language model: explicit feedback, then tool results, then the owner's messages.

The first of them that decides wins, but the owner's objection beside a tool's result outweighs it. The owner's
messages are classified, several in a row as one. Everybody else's words are ignored here: a web page can't praise a
reply. A question about the same topic that neither objects nor moves on decides nothing, and neither does a message
that isn't English: it is not read, and no hint is made of it. A tool's result that reports no failure counts if a
reader finds that it may be what was asked for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from clawrl_trl.judge import features, language
from clawrl_trl.judge.classifier import model
from clawrl_trl.judge.classifier.care_reader import measure_less_care
from clawrl_trl.judge.classifier.encoders import MINILM, QWEN
from clawrl_trl.judge.classifier.lesson_reader import measure_lesson
from clawrl_trl.judge.classifier.quotation_reader import drop_sentences
from clawrl_trl.judge.classifier.result_reader import LEAST_SUCCESS, measure_success
from clawrl_trl.judge.heard import Heard, collect_remarks, hear_owner, is_all_material, join
from clawrl_trl.judge.hints import extraction
from clawrl_trl.judge.hints.fitness import drop_unfit_hints
from clawrl_trl.judge.hints.patterns import DIRECTIVE
from clawrl_trl.judge.provenance import extract_owner_words, list_tool_names, unwrap
from clawrl_trl.judge.quotation.own_words import ELIDED, OwnWords
from clawrl_trl.judge.steering.talk import cut_verdict_talk
from clawrl_trl.judge.tools.results import ToolResult, score_results
from clawrl_trl.judge.tools.wanted import is_failure_wanted, is_wrong_call, wants_to_know
from clawrl_trl.judge.turn import JudgedTurn, Judgement
from clawrl_trl.messages import Json, text_of

HINT_MARGIN = 0.8
"""Least P(-1) of an objection that writes a hint: a wrong sign is one sample, a hint speaks at each of its tokens."""

SURE_LESSON = 0.95
"""Least probability of a lesson with which a hint is made of an objection that asks for nothing."""
SAFE_LESSON = 0.05
"""Most probability of asking for less care with which it is."""

SURE_BESIDE = 0.9
"""Least probability of a sign, beside words that may be somebody else's: a question about them often sounds cross."""

Classify = Callable[[str, str, str], model.Opinion]


class RulesJudge:
    """Deterministic; no request is made.

    One message takes some 70 ms of a core, with the large encoder 240, with the language model 800 on a
    processor with AMX, a tool's result that reports no failure 45.

    Args:
        classify: `(request, response, message) -> Opinion`. Default: the classifier that ships with the package.
        encoder: The encoder that this classifier and the reader of corrections read with, one of `ENCODERS`.
        any_score: Write hints also where the owner approves or is undecided.
    """

    name = "rules"

    def __init__(self, classify: Classify | None = None, *, encoder: str = MINILM, any_score: bool = False) -> None:
        self._classify = classify or (lambda *texts: model.load_shared(encoder)(*texts))
        self._encoder = encoder
        self._any_score = any_score
        self._one_at_a_time = asyncio.Lock()

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self.decide, turn)

    def decide(self, turn: JudgedTurn) -> Judgement:
        """Same as `judge`, in the calling thread."""
        return drop_unfit_hints(turn, self._decide(turn), self._encoder)

    def _decide(self, turn: JudgedTurn) -> Judgement:
        by_feedback = judge_feedback(turn, self._classify, any_score=self._any_score)
        if by_feedback:
            return by_feedback
        by_tools = self._by_tools(turn)
        return self._hear_owner(turn, by_tools) if by_tools else self._by_words(turn)

    def _by_tools(self, turn: JudgedTurn) -> Judgement | None:
        results = turn.tool_results()
        score = score_results(results)
        if score is None:
            return None
        detail: Json = {"by": "tool results", "results": len(results)}
        # Whoever asked for a failing test got what was wanted when it fails.
        if score == -1 and _may_be_wanted(turn, results):
            return Judgement(self.name, None, detail=detail | {"reason": "a failure may be what was wanted"})
        if score == 1 and not _is_success(turn, results):
            # What the owner says beside it decides then.
            if turn.said_by("owner"):
                return None
            return Judgement(self.name, None, detail=detail | {"reason": "it may not be what was asked for"})
        return Judgement(self.name, score, detail=detail)

    def _hear_owner(self, turn: JudgedTurn, by_tools: Judgement) -> Judgement:
        """The judgement of tools where the owner may have spoken beside their results.

        An objection counts whatever the tools report. Words that can't be told beside a success, or that are, or may
        be, the opposite of what the tools report, leave it open.
        """
        if by_tools.score is None or not turn.said_by("owner"):
            return self._add_wishes(turn, by_tools)
        by_words = self._by_words(turn)
        if by_words.score == -1:
            return by_words
        is_untold = by_words.score is None and by_words.detail["by"] != "nothing"
        is_praise = by_words.score == 1 or (is_untold and _leans_to_approval(by_words))
        if (is_untold and by_tools.score == 1) or (is_praise and by_tools.score == -1):
            reason = "the owner's words beside the results say something else, or can't be told"
            by_tools = replace(by_tools, score=None, detail={**by_tools.detail, "reason": reason})
        return self._add_wishes(turn, by_tools)

    def _add_wishes(self, turn: JudgedTurn, by_tools: Judgement) -> Judgement:
        """A verdict of tools with hints of the owner's wishes, if any score may have some.

        The owner's words don't decide here, so that no sentence counts as an objection.
        """
        if not self._any_score:
            return by_tools
        understood = [text for text in collect_remarks(turn) if language.is_english(text, turn.request)]
        wishes = extraction.extract_hints(understood, turn.request, list_tool_names(turn.tools), None, turn.reply)
        return replace(by_tools, hints=tuple(wishes), hint_source="owner message" if wishes else None)

    def _by_words(self, turn: JudgedTurn) -> Judgement:
        if is_all_material(turn):
            return Judgement(self.name, None, detail={"by": "nothing", "reason": "every message is a text to work on"})
        heard = hear_owner(turn)
        if not heard:
            return Judgement(self.name, None, detail={"by": "nothing", "reason": "nobody who may judge has spoken"})
        opinions = [self._read_beside(turn, row) for row in heard]
        score = self._weigh(turn, heard, opinions)
        detail = {
            "by": "words",
            "probabilities": [[round(p, 4) for p in opinion.probabilities] for opinion in opinions],
        }
        if reasons := sorted({opinion.reason for opinion in opinions if opinion.reason}):
            detail["reason"] = ", ".join(reasons)
        if score != -1 and not self._any_score:
            return Judgement(self.name, score, detail=detail)
        remarks = [
            drop_sentences(row.own, row.quoted).remarks
            for row, opinion in zip(heard, opinions, strict=True)
            # English words beside the owner's in another language were passed on.
            if language.is_english(row.own.text, turn.request)
            and opinion.score == score
            and (score != -1 or opinion.probabilities[0] >= HINT_MARGIN)
        ]
        candidates = self._extract_hints(turn, remarks, score, is_whole=all(row.is_all for row in heard))
        return Judgement(self.name, score, tuple(candidates), "owner message" if candidates else None, detail=detail)

    def _extract_hints(
        self, turn: JudgedTurn, remarks: Sequence[str], score: int | None, *, is_whole: bool
    ) -> list[str]:
        """Candidate hints out of the owner's remarks.

        The language model knows lessons that ask for nothing. They are taken of a whole message alone: beside a text
        that came along, what is left may be no lesson.
        """
        known = (turn.request, list_tool_names(turn.tools), score, turn.reply)
        hints = extraction.extract_hints(remarks, *known)
        if hints or not (remarks and is_whole) or score != -1 or self._encoder != QWEN:
            return hints
        texts = (turn.request, turn.reply, " ".join(remarks))
        if measure_lesson(*texts) < SURE_LESSON or measure_less_care(*texts, self._encoder) > SAFE_LESSON:
            return []
        return extraction.extract_hints(remarks, *known, is_lesson=True)

    def _weigh(self, turn: JudgedTurn, heard: Sequence[Heard], opinions: Sequence[model.Opinion]) -> int | None:
        """The score of several messages in a row, which are read as one: the last may take the first back.

        It counts if one of them has it alone too, as the end of a long row is not read, and unless the last has the
        opposite one. Those in other languages are left out.
        """
        read = [pair for pair in zip(heard, opinions, strict=True) if pair[1] != model.NOT_READ]
        scores = [opinion.score for _, opinion in read]
        if len(read) < 2:
            return scores[0] if scores else None
        score = self._read_beside(turn, join([row for row, _ in read])).score
        return score if score in scores and (not score or scores[-1] != -score) else None

    def _read_beside(self, turn: JudgedTurn, heard: Heard) -> model.Opinion:
        """The opinion on one message, of which sentences may be quoted: a sign counts if it holds without them."""
        own, quoted = heard.own, heard.quoted
        opinion = self._read(turn, own)
        if opinion.score == 1 and not heard.is_all and _moves_on(own):
            return replace(opinion, score=None, reason="a request about a text that came along")
        spoken = drop_sentences(own, quoted)
        if spoken == own or opinion.score is None:
            return opinion
        # A text to work on is the next task, and moving on approves; praise in it would be somebody else's.
        if opinion.score == 1 and not any(features.CUES["approval"].search(sentence) for sentence in quoted):
            return opinion
        again = self._read(turn, spoken) if spoken.text else model.NOT_READ
        if again.score == opinion.score and (again.score == 0 or max(again.probabilities) >= SURE_BESIDE):
            return opinion
        return replace(opinion, score=None, reason="it may be somebody else's words")

    def _read(self, turn: JudgedTurn, message: OwnWords) -> model.Opinion:
        """The opinion on one message: a request about a text that came along objects to nothing."""
        reply = cut_verdict_talk(turn.reply)
        opinion = self._classify(turn.request, reply, message.text)
        if opinion.score == 1 and reply.split() != turn.reply.split():
            # Who goes on to the next thing approves of a reply, but not of one that speaks to its judge.
            return replace(opinion, score=None, reason="the reply states a verdict of its own")
        if message.remarks == message.text or (opinion.score != -1 and message.remarks):
            return opinion
        if message.remarks:
            return self._classify(turn.request, reply, message.remarks)
        return replace(opinion, score=None, reason="a request about another text")


def _moves_on(own: OwnWords) -> bool:
    """Decide if words beside a text ask something of it, or introduce it, without a word of approval for the reply."""
    sentences = (sentence.replace(ELIDED, "").rstrip() for sentence in features.split_sentences(own.text))
    asks = any(sentence.endswith(("?", ":")) or DIRECTIVE.search(sentence) for sentence in sentences)
    return asks and not features.CUES["approval"].search(own.text)


def _is_success(turn: JudgedTurn, results: Sequence[ToolResult]) -> bool:
    """Decide if results that report no failure may be what the owner asked for."""
    asked = unwrap(turn.request)
    return all(measure_success(asked, result) >= LEAST_SUCCESS for result in results if result.text.strip())


def _leans_to_approval(by_words: Judgement) -> bool:
    """Decide if words that can't be told, as read, are an approval rather than an objection."""
    return any(plus > minus for minus, _, plus in by_words.detail["probabilities"])


def _may_be_wanted(turn: JudgedTurn, results: Sequence[ToolResult]) -> bool:
    """Decide if a failure may be the answer to what the owner asked, in one of the last two messages."""
    asked = [unwrap(text) for text in turn.requests[-2:]]
    if is_failure_wanted("\n".join([*asked, text_of(turn.response)])):
        return True
    return any(map(wants_to_know, asked)) and not any(is_wrong_call(result.text) for result in results)


def judge_feedback(turn: JudgedTurn, classify: Classify | None = None, *, any_score: bool = False) -> Judgement | None:
    """The judgement that explicit feedback leads to, or `None` when there is none that decides.

    A number (outcome, thumbs) decides over a correction (-1), a correction over free text; the newest of a kind
    counts. Without `classify`, free text does not decide. With `any_score` an approval may come with hints too.
    """
    numbers = [item.value for item in turn.feedback if item.value is not None]
    corrections = [item.text for item in turn.feedback if item.kind == "correction" and item.text]
    texts = [item.text for item in turn.feedback if item.kind != "correction" and item.text]
    texts = [words for text in texts if (words := extract_owner_words(text))]
    score: float | None = None
    by = ""
    if numbers:
        score, by = max(-1.0, min(1.0, float(numbers[-1]))), "feedback: value"
    elif corrections:
        score, by = -1.0, "feedback: correction"
    elif texts and classify is not None:
        score, by = classify(turn.request, turn.reply, texts[-1]).score or None, "feedback: text"
    if score is None:
        return None
    sources = [*reversed(corrections), *reversed(texts)]
    # Who only pressed a button may have said in the chat what was wrong.
    if not sources and by == "feedback: value":
        sources = collect_remarks(turn)
    if score >= 0 and not any_score:
        return Judgement("rules", score, detail={"by": by})
    understood = [text for text in sources if language.is_english(text, turn.request)]
    candidates = extraction.extract_hints(understood, turn.request, list_tool_names(turn.tools), score, turn.reply)
    return Judgement("rules", score, tuple(candidates), "owner feedback" if candidates else None, detail={"by": by})
