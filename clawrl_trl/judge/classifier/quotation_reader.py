"""The reader of quotations that have no mark: which sentences of a message are somebody else's words.

`quotation` knows them by quotes, rules, colons and heads. Who pastes a leaflet in the middle of a line, or tells what
a form says, leaves none of these, and the leaflet's "please keep it shorter" would object to the reply. So the small
encoder reads the whole message with the reply behind it, with an adapter of its own and a head over each token
(`examples/recipes/judge/quotations.py` trains them); a sentence has the mean of its tokens. English only, as the
classifier is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, keep_ends
from clawrl_trl.judge.quotation.own_words import ELIDED, OwnWords

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

WEIGHTS = Path(__file__).with_name("quotations.safetensors")
ENCODER = ENCODERS[MINILM]

QUOTED = 0.6
"""Least probability with which a sentence counts as somebody else's."""

MESSAGE_TOKENS, REPLY_TOKENS, REQUEST_TOKENS = 384, 64, 24
MESSAGE_CHARACTERS, CONTEXT_CHARACTERS = 2400, 1000
LINE_BREAK = "¶"
"""What the encoder reads for a line break, which its tokenizer would drop."""

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class EncodedMessages:
    """Tokens of some messages with reply and request behind them, each array of shape `(batch, length)`.

    Attributes:
        tokens: Ids.
        attention: 1 where a token stands.
        spans: For each message the characters `(begin, end)` of its tokens, the first of which is at position 1.
    """

    tokens: "torch.Tensor"
    attention: "torch.Tensor"
    spans: list[list[tuple[int, int]]]


def encode(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[tuple[str, str, str]]) -> EncodedMessages:
    """Tokenize `(request, reply, message)` into a padded batch; a long reply by its beginning and its end."""
    import torch

    start, end, padding = (int(getattr(tokenizer, f"{name}_token_id")) for name in ("cls", "sep", "pad"))
    rows, spans = [], []
    for request, reply, message in texts:
        said = tokenizer(
            message[:MESSAGE_CHARACTERS].replace("\n", LINE_BREAK),
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        context = tokenizer([reply[-CONTEXT_CHARACTERS:], request[:CONTEXT_CHARACTERS]], add_special_tokens=False)
        replied, asked = context["input_ids"]
        replied = keep_ends(replied, REPLY_TOKENS)
        rows.append([start, *said["input_ids"][:MESSAGE_TOKENS], end, *replied, end, *asked[:REQUEST_TOKENS], end])
        spans.append(said["offset_mapping"][:MESSAGE_TOKENS])
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    attention = (torch.arange(longest) < torch.tensor([[len(row)] for row in rows])).long()
    return EncodedMessages(tokens, attention, spans)


def find_sentences(message: str) -> list[tuple[int, int]]:
    """Where a message's sentences begin and end, in characters."""
    found, position = [], 0
    for sentence in features.split_sentences(message):
        begin = message.index(sentence, position)
        position = begin + len(sentence)
        found.append((begin, position))
    return found


def locate_tokens(spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[int]:
    """Positions of the tokens of a message that stand in a part of its text, the message's first at position 1."""
    return [place for place, (first, last) in enumerate(spans, start=1) if first < end and last > begin]


class QuotationReader:
    """The small encoder with the adapter and the head that tell quotations; one thread, float32, deterministic.

    Raises:
        UserError: If the encoder is missing or is not the published one.
    """

    def __init__(self) -> None:
        import torch
        from safetensors.torch import load_file

        from clawrl_trl.judge.classifier.adapters import load_adapted

        # With one thread the sums are the same on every machine.
        torch.set_num_threads(1)
        tensors = load_file(WEIGHTS)
        self._torch = torch
        self._tokenizer = ENCODER.load_tokenizer()
        self._encoder = load_adapted(ENCODER, tensors)
        self._weight, self._bias = tensors["head.weight"], tensors["head.bias"]

    def __call__(self, request: str, reply: str, message: str) -> list[tuple[str, float]]:
        """The sentences of a message, each with the probability that somebody else said it.

        Of what stands behind the first `MESSAGE_TOKENS` tokens the probability is 0.
        """
        with self._torch.inference_mode():
            batch = encode(self._tokenizer, [(request, reply, message)])
            hidden = self._encoder(input_ids=batch.tokens, attention_mask=batch.attention).last_hidden_state[0]
            logits = (hidden @ self._weight[0] + self._bias).numpy()
        return [
            (message[begin:end], _average(logits, batch.spans[0], begin, end))
            for begin, end in find_sentences(message)
        ]


def _average(logits: NDArray[np.float32], spans: Sequence[tuple[int, int]], begin: int, end: int) -> float:
    places = locate_tokens(spans, begin, end)
    return float(1 / (1 + np.exp(-logits[places].mean()))) if places else 0.0


# A turn asks twice: for its score and for its hints.
@lru_cache(maxsize=8)
def find_quoted(request: str, reply: str, message: str) -> tuple[str, ...]:
    """The sentences of an English message that are somebody else's words."""
    return tuple(sentence for sentence, quoted in _load_shared()(request, reply, message) if quoted >= QUOTED)


def drop_sentences(own: OwnWords, quoted: Sequence[str]) -> OwnWords:
    """The owner's words without sentences that were found to be somebody else's."""
    return OwnWords(_drop(own.text, quoted), _drop(own.remarks, quoted)) if quoted else own


def holds_sentence(text: str, quoted: Sequence[str]) -> bool:
    """Return whether a text holds one of some sentences, or stands in one, by its words."""
    words = _join_words(text)
    return bool(words) and any(words in other or other in words for other in map(_join_words, quoted) if other)


def _drop(text: str, quoted: Sequence[str]) -> str:
    lines = [
        " ".join(part for part in features.split_sentences(line) if not _is_part(part, quoted))
        for line in text.split("\n")
    ]
    return "\n".join(line for line in lines if line)


def _is_part(sentence: str, quoted: Sequence[str]) -> bool:
    # What was elided in the owner's words still stands in the message: the longest piece beside it is looked for.
    piece = max(map(_join_words, sentence.split(ELIDED)), key=len)
    return bool(piece) and any(piece in _join_words(other) for other in quoted)


def _join_words(text: str) -> str:
    words = _WORD.findall(text.lower())
    return f" {' '.join(words)} " if words else ""


@lru_cache(maxsize=1)
def _load_shared() -> QuotationReader:
    return QuotationReader()
