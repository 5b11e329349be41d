"""How a language model reads messages: each as the last of a chat that the model is about to answer.

The embedding of a message is the final hidden state where its answer would begin, of unit length: a model that would
apologise next knows an objection. Messages after the same reply are packed into one row, in which each attends to
request and reply and to itself alone, as if it were the only one; training takes a quarter of the time so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from clawrl_trl.judge.classifier.encoders import LAST, Encoder, keep_ends

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_CHARACTERS = 2000
_CONTEXT, _PADDING = 0, -1


class BranchingChat(NamedTuple):
    """A request, its reply, and what the owner may have said next, each message a continuation of its own."""

    request: str
    reply: str
    messages: Sequence[str]


@dataclass(frozen=True)
class PackedChats:
    """Some chats as arrays, one a row.

    Attributes:
        tokens: Ids, shape `(chats, length)`.
        positions: Of each token in its continuation, same shape.
        mask: What is added to the attention of a token (row) to another (column), shape `(chats, 1, length, length)`.
        ends: For each message, in order, its row and the place of its last token, shape `(messages, 2)`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    ends: torch.Tensor


class _Row(NamedTuple):
    """One chat's tokens, the place of each in its continuation, whose it is, and where each message ends."""

    tokens: list[int]
    positions: list[int]
    parts: list[int]
    ends: list[int]


def pack_chats(tokenizer: "PreTrainedTokenizerBase", chats: Sequence[BranchingChat], limits: Encoder) -> PackedChats:
    """Tokenize chats into one padded batch.

    Of a reply longer than the `limits` of its encoder the beginning and the end are kept, of message and request the
    beginning. What looks like a marker of the chat's template is none.
    """
    rows = [_lay_out(tokenizer, chat, limits) for chat in chats]
    parts = _pad([row.parts for row in rows], _PADDING)
    return PackedChats(
        _pad([row.tokens for row in rows], int(tokenizer.pad_token_id)),
        _pad([row.positions for row in rows], 0),
        _make_mask(parts),
        torch.tensor([(number, end) for number, row in enumerate(rows) for end in row.ends]),
    )


def _lay_out(tokenizer: "PreTrainedTokenizerBase", chat: BranchingChat, limits: Encoder) -> _Row:
    def tokenise(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def tokenise_text(text: str) -> list[int]:
        return tokenise(_shorten(text).replace("<|", "< |"))

    user, assistant, end = map(tokenise, ("<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"))
    asked = tokenise_text(chat.request)[: limits.request_tokens]
    replied = keep_ends(tokenise_text(chat.reply), limits.reply_tokens)
    tokens = [*user, *asked, *end, *assistant, *replied, *end]
    common = len(tokens)
    row = _Row(tokens, list(range(common)), [_CONTEXT] * common, [])
    for part, message in enumerate(chat.messages, start=_CONTEXT + 1):
        said = [*user, *tokenise_text(message)[: limits.message_tokens], *end, *assistant]
        row.tokens.extend(said)
        row.positions.extend(range(common, common + len(said)))
        row.parts.extend([part] * len(said))
        row.ends.append(len(tokens) - 1)
    return row


def _shorten(text: str) -> str:
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else text[:half] + text[-half:]


def _pad(rows: Sequence[list[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def _make_mask(parts: torch.Tensor) -> torch.Tensor:
    """A token sees what stands before it of request and reply, and of its own message."""
    length = parts.shape[1]
    seen, sees = parts.unsqueeze(1), parts.unsqueeze(2)
    allowed = ((seen == _CONTEXT) | (seen == sees)) & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.bfloat16).min).unsqueeze(1)


def embed_chats(encoder: nn.Module, chats: PackedChats, layers: Sequence[int] = (LAST,)) -> torch.Tensor:
    """Embed the messages of packed chats, in order: float32, of unit length, shape `(layers, messages, hidden size)`.

    Args:
        encoder: The language model.
        chats: What it reads.
        layers: After how many of its layers; `LAST` is after all of them, and the norm.
    """
    weights = next(encoder.parameters())
    output = encoder(
        input_ids=chats.tokens,
        position_ids=chats.positions,
        attention_mask=chats.mask.to(weights.dtype),
        use_cache=False,
        output_hidden_states=any(layer != LAST for layer in layers),
    )
    hidden = [output.last_hidden_state if layer == LAST else output.hidden_states[layer] for layer in layers]
    ends = torch.stack([states[chats.ends[:, 0], chats.ends[:, 1]] for states in hidden]).float()
    result: torch.Tensor = ends / ends.norm(dim=-1, keepdim=True)
    return result
