"""Incremental decoding of token ids to text.

Text is released only when it can't change any more: a character's bytes are complete, and it can't be the beginning
of a stop string. So what was streamed is always a prefix of the final text, and a stop string never leaks.
"""

from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

CONTEXT = 6
"""Prompt tokens a decoder sees first, so that the spacing at the seam comes out right."""


class Vocabulary:
    """The tokenizer as the engine reads it.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A fast tokenizer.
        delimiters (`str`): Text in which the special tokens that a reply parser needs to see occur.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, delimiters: str = "") -> None:
        self.tokenizer = tokenizer
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        special = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(special)
        self.silent_ids = frozenset(index for index, text in special.items() if text not in delimiters)
        longest = max(map(len, self.backend.get_vocab()))
        # Canonical composition makes at most four characters one before they are tokenised.
        self.characters_per_token = longest * (4 if self.backend.normalizer is not None else 1)
        self.token_text = lru_cache(maxsize=None)(self._token_text)

    def _token_text(self, token_id: int) -> str:
        return str(self.backend.decode([token_id], skip_special_tokens=False))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text, with the tokenizer's own beginning and end tokens or without.

        Raises:
            UnicodeError: If the text holds half a surrogate pair, which no encoding can write.
        """
        text.encode("utf-8")
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int], *, skip_special: bool = False) -> str:
        return str(self.backend.decode(ids, skip_special_tokens=skip_special))


class Detokenizer:
    """The text of one growing reply.

    Args:
        vocabulary (`Vocabulary`): The tokenizer.
        prompt_ids (`list[int]`): What the reply continues.
        hidden (`frozenset[int]`): Token ids that have no text.
        stop (`tuple[str, ...]`): Strings that end the reply.
        include_stop (`bool`): Whether the stop string is part of the reply.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_ids: list[int],
        *,
        hidden: frozenset[int] = frozenset(),
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        self._backend = vocabulary.backend
        self._hidden = hidden
        self._stop = stop
        self._include_stop = include_stop
        context = prompt_ids[-CONTEXT:]
        if vocabulary.decode(context).endswith("\N{REPLACEMENT CHARACTER}"):
            context = []  # the prompt ends within a character, which is not the reply's to complete
        self._stream = DecodeStream(ids=context, skip_special_tokens=False)
        self._undecoded: list[int] = []
        self._held = ""
        self.stopped: str | None = None

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is certain now. Sets `stopped` when a stop string is complete."""
        if token_id in self._hidden:
            return ""
        self._undecoded.append(token_id)
        text = self._step(token_id)
        if text is None:
            return ""
        self._undecoded.clear()
        return self._release(text)

    def flush(self) -> str:
        """The rest: incomplete characters as U+FFFD, and what was held for a stop string that never came."""
        text, self._undecoded = self._backend.decode(self._undecoded, skip_special_tokens=False), []
        released = self._release(text) if text else ""
        if self.stopped is None:
            released, self._held = released + self._held, ""
        return released

    def _step(self, token_id: int) -> str | None:
        try:
            text: str | None = self._stream.step(self._backend, token_id)
        except Exception:  # noqa: BLE001  # raised as such when the text so far decodes differently in context
            self._stream = DecodeStream(ids=[], skip_special_tokens=False)
            text = self._backend.decode(self._undecoded, skip_special_tokens=False)
        return text

    def _release(self, text: str) -> str:
        if not self._stop:
            return text
        if self.stopped is not None:
            return ""
        text = self._held + text
        matches = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if matches:
            # The earliest one ends the reply, also where a later one was complete in the same piece.
            place, self.stopped = min(matches)
            self._held = ""
            return text[: place + (len(self.stopped) if self._include_stop else 0)]
        certain = len(text) - _count_pending(text, self._stop)
        self._held = text[certain:]
        return text[:certain]


def _count_pending(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in stops)), 0)
