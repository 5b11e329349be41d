"""The training loop of the tiny model: conversations in, a Qwen3 of under four million parameters out.

Plain PyTorch on the CPU. Conversations are generated as they are needed and batched by length to a budget of
tokens, so little is padded; right padding needs no mask under causal attention. The
loss is taken on replies only. With the same seed, thread count and machine a run repeats itself exactly.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Encoding
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from clawrl_trl.engines.precision import has_bfloat16_products
from clawrl_trl.envs.chat.problems import NAMES, UNITS
from recipes.tiny import actions
from recipes.tiny.dialogues import ACTING, dialogue
from recipes.tiny.drills import draw_drill
from recipes.tiny.render import Piece, render_pieces

BATCH_TOKENS = 4096
_CHUNK = 2048
_LONGEST = 768
_WIDTH_STEP = 16
GIVEN, LEARNT, OPENING = 0, 1, 2
Row = tuple[list[int], list[int]]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Lessons:
    """Mixture of the training texts.

    Attributes:
        right: the share of episodes in environments that succeed.
        drills: the share of drills; the rest are conversations.
        copying: the share of drills that are about what the prompt says, not about numbers.
        acting: the share of conversations in environments.
        opening: how much the first token of a reply counts in the loss, whatever it is, so that it can't tilt the
            choice of a style. It has the most to choose from, and what does not fit there spoils the whole reply.
    """

    right: float = actions.RIGHT
    drills: float = 0.22
    copying: float = 0.1
    acting: float = ACTING
    opening: float = 1.0


USUAL = Lessons()


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised model for that tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def _make_weights(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Weights of the tokens in the loss, [V]: digits, names and objects are where a slip makes a reply wrong."""
    weights = torch.ones(len(tokenizer))
    for digit in "0123456789":
        for text in (digit, f" {digit}"):
            weights[tokenizer.encode(text)] = 3.0
    for word in (*NAMES, *UNITS):
        ids = tokenizer.encode(f" {word}")
        if len(ids) == 1:
            weights[ids] = 2.0
    for verdict in (" correct", " incorrect"):
        weights[tokenizer.encode(verdict)] = 5.0
    return weights


def _make_row(encodings: Iterator[Encoding], talk: list[Piece]) -> Row:
    ids: list[int] = []
    marks: list[int] = []
    for (_, mode), encoding in zip(talk, encodings, strict=False):
        piece = encoding.ids
        ids += piece
        first = {"no": GIVEN, "yes": OPENING, "after its first token": GIVEN}[mode]
        marks += [first] + [GIVEN if mode == "no" else LEARNT] * (len(piece) - 1)
    return ids, marks


def _draw_lesson(rng: random.Random, lessons: Lessons) -> list[Piece]:
    if rng.random() < lessons.drills:
        return draw_drill(rng, lessons.copying)
    return render_pieces(dialogue(rng, lessons.right, lessons.acting))


def _encode_lessons(tokenizer: PreTrainedTokenizerFast, rng: random.Random, lessons: Lessons) -> list[Row]:
    """A chunk of conversations and drills as token ids, with a mark for each token."""
    talks = [_draw_lesson(rng, lessons) for _ in range(_CHUNK)]
    encodings = tokenizer.backend_tokenizer.encode_batch([text for talk in talks for text, _ in talk])
    pending = iter(encodings)
    rows = [_make_row((next(pending) for _ in talk), talk) for talk in talks]
    return [row for row in rows if len(row[0]) <= _LONGEST]


def _collate(rows: list[Row], width: int, pad: int) -> Batch:
    inputs = torch.full((len(rows), width), pad)
    marks = torch.full((len(rows), width), GIVEN)
    for row, (ids, row_marks) in enumerate(rows):
        inputs[row, : len(ids)] = torch.tensor(ids)
        marks[row, : len(ids)] = torch.tensor(row_marks)
    return inputs, marks


def generate_batches(tokenizer: PreTrainedTokenizerFast, seed: int, tokens: int, lessons: Lessons) -> Iterator[Batch]:
    """Endless batches of about `tokens` tokens: input ids and marks (`GIVEN`, ...), both [B, L].

    Rows of like length wait in buckets until a batch is full, so there are few shapes of batch: a kernel library
    compiles for each shape, and many shapes cost more than the padding.
    """
    rng = random.Random(f"{seed}-conversations")
    pad = int(tokenizer.pad_token_id or 0)
    buckets: dict[int, list[Row]] = defaultdict(list)
    while True:
        for row in _encode_lessons(tokenizer, rng, lessons):
            width = -(-len(row[0]) // _WIDTH_STEP) * _WIDTH_STEP
            buckets[width].append(row)
            if len(buckets[width]) == max(1, tokens // width):
                yield _collate(buckets.pop(width), width, pad)


def compute_reply_loss(
    model: Qwen3ForCausalLM,
    inputs: torch.Tensor,
    marks: torch.Tensor,
    weights: torch.Tensor,
    opening: float = 1.0,
) -> torch.Tensor:
    """Weighted mean cross-entropy over the learnt tokens; logits are computed for those alone.

    Args:
        model: the model.
        inputs: token ids, [B, L].
        marks: `GIVEN`, `LEARNT` or `OPENING` for each token, [B, L].
        weights: the weight of each token of the vocabulary, [V], where it is no opening.
        opening: the weight of an opening.
    """
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    next_marks = marks[:, 1:].flatten()
    learnt_places = next_marks.nonzero().squeeze(1)
    filled = -(-len(learnt_places) // 256) * 256 - len(learnt_places)
    targets = inputs[:, 1:].flatten()[learnt_places]
    counts = torch.where(next_marks[learnt_places] == OPENING, opening, weights[targets])
    states = hidden[:, :-1].flatten(0, 1)[functional.pad(learnt_places, (0, filled))]
    losses = functional.cross_entropy(
        model.lm_head(states).float(), functional.pad(targets, (0, filled), value=-100), reduction="none"
    )
    return (losses[: len(learnt_places)] * counts).sum() / counts.sum()


def _compute_rate(step: int, steps: int, peak: float) -> float:
    warmup = min(100, max(1, steps // 10))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    steps: int,
    tokens: int = BATCH_TOKENS,
    learning_rate: float = 2e-3,
    lessons: Lessons = USUAL,
    compiled: bool = False,
    after_step: Callable[[int], None] | None = None,
) -> list[float]:
    """Train `model` in place and return the loss of every step.

    Args:
        model: float32; the matrix products run in bfloat16 (autocast) on a CPU that has it, twice as fast.
        tokenizer: the tokenizer of `model`.
        seed: seeds the conversations.
        steps: optimiser steps.
        tokens: the budget of a batch, padding included.
        learning_rate: the peak of a cosine schedule with a short warm-up.
        lessons: what is taught.
        compiled: compile the model first, which needs a C++ compiler and a minute, and saves a third of the rest.
        after_step: called with the number of steps done.
    """
    torch.manual_seed(seed)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=True)
    losses: list[float] = []
    model.train()
    if compiled:
        model.model.compile(dynamic=True)
    source = generate_batches(tokenizer, seed, tokens, lessons)
    weights = _make_weights(tokenizer)
    progress = tqdm(range(steps), desc="training", unit="step", mininterval=2)
    for step in progress:
        inputs, marks = next(source)
        for group in optimizer.param_groups:
            group["lr"] = _compute_rate(step, steps, learning_rate)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16_products()):
            loss = compute_reply_loss(model, inputs, marks, weights, lessons.opening)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if after_step is not None:
            after_step(step + 1)
        if step % 20 == 0:
            progress.set_postfix(loss=f"{sum(losses[-20:]) / len(losses[-20:]):.3f}")
    model.eval()
    return losses
