"""Replies as JSON: updates of the engine to vLLM's chat and text completion objects, whole or in chunks.

A `Writer` follows the choices of one request. Chunks carry the ids and log-probabilities of every token sampled since
the chunk before, also when those tokens have no text of their own, so the chunks of a stream add up to the whole
object of the same sampling.
"""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from clawrl_trl.engines.embedded.chat import Delta, ParsedToolCall, ReplyReader
from clawrl_trl.engines.embedded.detokenize import Vocabulary
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.protocol import ChatBody, CompletionBody, SamplingBody
from clawrl_trl.messages import Json

LOWEST = -9999.0
"""Stands for minus infinity, which JSON doesn't have; vLLM's value."""


@dataclass
class Tokens:
    """Sampled tokens with what was asked about each."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)

    def add(self, update: Update) -> None:
        self.ids += update.token_ids
        self.logprobs += update.logprobs
        self.alternatives += update.alternatives


@dataclass
class ReplyPart:
    """Text and tokens that one choice gained: since the last chunk, or as a whole."""

    delta: Delta = field(default_factory=Delta)
    tokens: Tokens = field(default_factory=Tokens)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ReplyFailed(Exception):
    """The engine gave up on a request; the text says why."""


class Writer:
    """Collects the updates of one request by choice, and writes them as JSON.

    Args:
        body (`SamplingBody`): The request.
        model (`str`): Name the client asked for.
        vocabulary (`Vocabulary`): For the text of single tokens.
        generations (`list[Generation]`): The prompts, `n` choices each.
    """

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(self, body: SamplingBody, model: str, vocabulary: Vocabulary, generations: list[Generation]) -> None:
        self.body = body
        self.model = model
        self.vocabulary = vocabulary
        self.generations = generations
        self.id = self.id_prefix + (body.request_id or uuid.uuid4().hex)
        self.created = int(time.time())
        self.sampled = 0
        self._place = {generation: number * body.n for number, generation in enumerate(generations)}

    def read(self, updates: Iterable[Update]) -> dict[int, ReplyPart]:
        """Return what each choice gained through these updates.

        Raises:
            ReplyFailed: If an update carries an error.
        """
        parts: dict[int, ReplyPart] = {}
        for update in updates:
            if update.error is not None:
                raise ReplyFailed(update.error)
            index = self._place[update.generation] + update.index
            part = parts.setdefault(index, ReplyPart())
            part.tokens.add(update)
            self.sampled += len(update.token_ids)
            part.delta.add(self._delta(index, update))
            if update.finish_reason is not None:
                part.finish_reason = self._finish_reason(index, update.finish_reason)
                part.stop_reason = update.stop_reason
        return parts

    def _delta(self, index: int, update: Update) -> Delta:
        return Delta(content=update.text)

    def _finish_reason(self, index: int, reason: str) -> str:
        return reason

    def usage(self) -> Json:
        """Return OpenAI's token counts of the whole request so far."""
        prompt = sum(len(generation.prompt_ids) for generation in self.generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.sampled,
            "total_tokens": prompt + self.sampled,
            "prompt_tokens_details": None,
        }

    def write_usage_chunk(self) -> Json:
        """Write the chunk without choices that ends a stream when usage was asked for."""
        return self._envelope(self.chunk_name) | {"choices": [], "usage": self.usage()}

    def _envelope(self, name: str) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def _token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.body.return_tokens_as_token_ids else self.vocabulary.token_text(token_id)

    def _prompt_logprobs(self, generation: Generation) -> list[Json | None] | None:
        scores = generation.prompt_scores
        if scores is None:
            return None
        entries: list[Json | None] = [None]  # the first token has none
        rows = zip(generation.prompt_ids[1:], scores.logprobs, scores.ranks, scores.alternatives, strict=True)
        for token_id, logprob, rank, alternatives in rows:
            entry = {str(token_id): self._describe_score(token_id, logprob, rank)}
            for place, (alternative, value) in enumerate(alternatives, 1):
                entry.setdefault(str(alternative), self._describe_score(alternative, value, place))
            entries.append(entry)
        return entries

    def _describe_score(self, token_id: int, logprob: float, rank: int) -> Json:
        return {
            "logprob": max(logprob, LOWEST),
            "rank": rank,
            "decoded_token": self.vocabulary.token_text(token_id),
        }


class ChatWriter(Writer):
    """Writes chat completions. `readers` turn the text of each choice into messages."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    body: ChatBody

    def __init__(
        self,
        body: ChatBody,
        model: str,
        vocabulary: Vocabulary,
        generation: Generation,
        readers: list[ReplyReader],
    ) -> None:
        super().__init__(body, model, vocabulary, [generation])
        self._readers = readers
        self._calls = [0] * len(readers)

    def _delta(self, index: int, update: Update) -> Delta:
        delta = self._readers[index].feed(update.text)
        if update.finish_reason is not None:
            # Of a stop string the text was fed already.
            by_token = update.finish_reason == "stop" and update.stop_reason is None and update.token_ids
            delta.add(
                self._readers[index].finish(self.vocabulary.token_text(update.token_ids[-1]) if by_token else "")
            )
        if not self.body.include_reasoning:
            delta.reasoning = ""
        self._calls[index] += len(delta.tool_calls)
        return delta

    def _finish_reason(self, index: int, reason: str) -> str:
        # A call that was cut by its length is not complete, so `length` stays.
        return "tool_calls" if reason == "stop" and self._calls[index] else reason

    def write_first_chunk(self) -> Json:
        """Write the chunk that opens all choices; it names the role and the prompt's tokens."""
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for index in range(self.body.n)
        ]
        chunk = self._envelope(self.chunk_name) | {"choices": choices}
        if self.body.return_token_ids:
            chunk["prompt_token_ids"] = self.generations[0].prompt_ids
        return chunk

    def write_chunk(self, index: int, part: ReplyPart) -> Json | None:
        """Write one choice's gain as a chunk; `None` if the client would learn nothing from it."""
        has_token_data = self.body.return_token_ids or self.body.logprobs
        # A token without text of its own still has an id, which a trainer counts.
        if not part.delta and part.finish_reason is None and not has_token_data:
            return None
        before = self._calls[index] - len(part.delta.tool_calls)
        delta: Json = {}
        # Under vLLM's name and that of most clients.
        if part.delta.reasoning:
            delta["reasoning_content"] = delta["reasoning"] = part.delta.reasoning
        if part.delta.content:
            delta["content"] = part.delta.content
        if part.delta.tool_calls:
            calls = enumerate(part.delta.tool_calls, before)
            delta["tool_calls"] = [{"index": place, **_describe_call(call)} for place, call in calls]
        return self._envelope(self.chunk_name) | {"choices": [self._choice(index, part) | {"delta": delta}]}

    def write_reply(self, parts: list[ReplyPart]) -> Json:
        """Write the finished object."""
        choices = [
            self._choice(index, part) | {"message": _make_message(part.delta)} for index, part in enumerate(parts)
        ]
        reply = self._envelope(self.object_name) | {
            "choices": choices,
            "usage": self.usage(),
            "prompt_logprobs": self._prompt_logprobs(self.generations[0]),
        }
        if self.body.return_token_ids:
            reply["prompt_token_ids"] = self.generations[0].prompt_ids
        return reply

    def _choice(self, index: int, part: ReplyPart) -> Json:
        choice: Json = {
            "index": index,
            "logprobs": self._logprobs(part.tokens) if self.body.logprobs else None,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = part.tokens.ids
        return choice

    def _logprobs(self, tokens: Tokens) -> Json:
        rows = zip(tokens.ids, tokens.logprobs, tokens.alternatives, strict=True)
        return {
            "content": [
                self._entry(token_id, logprob)
                | {"top_logprobs": [self._entry(*alternative) for alternative in alternatives]}
                for token_id, logprob, alternatives in rows
            ]
        }

    def _entry(self, token_id: int, logprob: float) -> Json:
        text = self._token(token_id)
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(text.encode())}


class CompletionWriter(Writer):
    """Writes text completions."""

    body: CompletionBody

    def __init__(
        self, body: CompletionBody, model: str, vocabulary: Vocabulary, generations: list[Generation]
    ) -> None:
        super().__init__(body, model, vocabulary, generations)
        self._offsets = [0] * (len(generations) * body.n)
        self._begun: set[int] = set()

    def write_chunk(self, index: int, part: ReplyPart) -> Json | None:
        """Write one choice's gain as a chunk; `None` if the client would learn nothing from it."""
        has_token_data = self.body.return_token_ids or self.body.logprobs is not None
        if not part.delta and part.finish_reason is None and not has_token_data:
            return None
        chunk = self._envelope(self.chunk_name) | {
            "choices": [self._choice(index, part, first=index not in self._begun)]
        }
        if index not in self._begun and self.body.return_token_ids and len(self.generations) == 1:
            chunk["prompt_token_ids"] = self.generations[0].prompt_ids
        self._begun.add(index)
        return chunk

    def write_reply(self, parts: list[ReplyPart]) -> Json:
        """Write the finished object."""
        choices = [self._choice(index, part, first=True) for index, part in enumerate(parts)]
        reply = self._envelope(self.object_name) | {"choices": choices, "usage": self.usage()}
        if self.body.return_token_ids and len(self.generations) == 1:
            reply["prompt_token_ids"] = self.generations[0].prompt_ids
        return reply

    def _choice(self, index: int, part: ReplyPart, *, first: bool) -> Json:
        generation = self.generations[index // self.body.n]
        choice: Json = {
            "index": index,
            "text": part.delta.content,
            "logprobs": None if self.body.logprobs is None else self._logprobs(index, part.tokens),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = part.tokens.ids
            if first:
                choice["prompt_token_ids"] = generation.prompt_ids
        if first:
            choice["prompt_logprobs"] = self._prompt_logprobs(generation)
        return choice

    def _logprobs(self, index: int, tokens: Tokens) -> Json:
        texts = [self._token(token_id) for token_id in tokens.ids]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        rows = zip(tokens.ids, tokens.logprobs, tokens.alternatives, strict=True)
        tops = [
            {self._token(token_id): max(logprob, LOWEST)}
            | {self._token(alternative): max(value, LOWEST) for alternative, value in alternatives}
            for token_id, logprob, alternatives in rows
        ]
        return {
            "text_offset": offsets,
            "token_logprobs": [max(value, LOWEST) for value in tokens.logprobs],
            "tokens": texts,
            "top_logprobs": tops,
        }


def _make_message(delta: Delta) -> Json:
    # OpenAI's protocol has null, not empty text, beside calls; an empty reply stays text.
    silent = not delta.content and bool(delta.tool_calls or delta.reasoning)
    message: Json = {
        "role": "assistant",
        "content": None if silent else delta.content,
        "reasoning_content": delta.reasoning or None,
        "reasoning": delta.reasoning or None,
    }
    if delta.tool_calls:
        message["tool_calls"] = [_describe_call(call) for call in delta.tool_calls]
    return message


def _describe_call(call: ParsedToolCall) -> Json:
    identity = f"call_{uuid.uuid4().hex[:24]}"
    return {"id": identity, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
