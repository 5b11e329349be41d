"""Train the reader of quotations that have no mark, and measure it on one writer's messages.

    PYTHONPATH=examples python -m recipes.judge.quotations --hold_out web --threads 2 --output /tmp/q.safetensors
    PYTHONPATH=examples python -m recipes.judge.quotations --threads 2

`data/quotations` holds messages by five writers, somebody else's words in them between ⟦ and ⟧: leaflets, tickets,
mails, texts to work on. To them come other messages, all the owner's own. So that only the setting tells, and
neither the words nor the layout, half of the quotations are exchanged for another's or for an objection of the scenes
in each epoch, and line breaks are put between sentences or taken away.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clawrl_trl.engines.precision import has_bfloat16_products
from clawrl_trl.judge.classifier.quotation_reader import (
    ENCODER,
    QUOTED,
    WEIGHTS,
    encode,
    find_sentences,
    locate_tokens,
)
from recipes.judge import examples, train
from recipes.judge.corpus import DATA
from recipes.judge.network import adapt, save_with_adapter

WRITERS = ("coding", "home", "office", "texts", "web")
RANK, BATCH, EPOCHS, OWN, ROUNDS = 16, 32, 6, 2500, 6
ADAPTER_LR, HEAD_LR, SMOOTHING, EXCHANGED = 1e-3, 5e-3, 0.05, 0.5
SHORTEST, FEW_WORDS = 20, 4
"""Least characters of a quotation that is exchanged for others', least words of one that is exchanged."""
OPEN, CLOSE = "⟦", "⟧"
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class Message:
    """A message in its context.

    Attributes:
        request, reply, text: What was asked, what was replied, what the owner wrote then.
        quoted: For each character of the text whether somebody else wrote it.
    """

    request: str
    reply: str
    text: str
    quoted: NDArray[np.bool_]


def load_messages(writer: str) -> list[Message]:
    """One writer's messages."""
    lines = (DATA / "quotations" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    return [parse_marks(row["request"], row["reply"], row["message"]) for row in map(json.loads, lines)]


def parse_marks(request: str, reply: str, marked: str) -> Message:
    """A message whose quotations stand between marks."""
    parts = [(part, index % 2 == 1) for index, part in enumerate(re.split(f"[{OPEN}{CLOSE}]", marked))]
    return Message(request, reply, *_join(parts))


def _join(parts: Sequence[tuple[str, bool]]) -> tuple[str, NDArray[np.bool_]]:
    quoted = [is_quoted for part, is_quoted in parts for _ in part]
    return "".join(part for part, _ in parts), np.array(quoted, dtype=bool)


def split_parts(message: Message) -> Iterator[tuple[str, bool]]:
    """The parts of a message, in turn the owner's and somebody else's."""
    ends = [*(np.flatnonzero(np.diff(message.quoted)) + 1).tolist(), len(message.text)]
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin < end:
            yield message.text[begin:end], bool(message.quoted[begin])


def exchange(message: Message, others: Sequence[str], random: np.random.Generator) -> Message:
    """The message with other quotations in place of its own, but for those of a few words."""
    parts = [
        (others[int(random.integers(len(others)))] if quoted and len(part.split()) > FEW_WORDS else part, quoted)
        for part, quoted in split_parts(message)
    ]
    return Message(message.request, message.reply, *_join(parts))


def break_lines(message: Message, random: np.random.Generator) -> Message:
    """The message with other breaks between its sentences, now and then: an own text is split into paragraphs more."""
    own, draw = not message.quoted.any(), random.random()
    if draw < (0.35 if own else 0.6):
        return message
    fixed = "\n\n" if own and draw < 0.55 else "\n" if own and draw < 0.7 else " " if draw < 0.8 else None
    choose: Callable[[], str] = lambda: fixed or ("\n\n", " ", " ", "\n")[int(random.integers(4))]  # noqa: E731
    parts, last = [], 0
    for gap in _BREAK.finditer(message.text):
        parts += [*_slice(message, last, gap.start()), (choose(), bool(message.quoted[gap.start()]))]
        last = gap.end()
    return Message(message.request, message.reply, *_join([*parts, *_slice(message, last, len(message.text))]))


def _slice(message: Message, begin: int, end: int) -> Iterator[tuple[str, bool]]:
    return split_parts(Message("", "", message.text[begin:end], message.quoted[begin:end]))


class Network(nn.Module):
    """Encoder with adapter, and a head over each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = ENCODER.load_tokenizer()
        self.encoder = adapt(ENCODER, RANK)
        self.head = nn.Linear(self.encoder.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Sequence[Message]) -> tuple[torch.Tensor, list[list[tuple[int, int]]]]:
        """Logits, shape `(n, length)`, and the characters of each message's tokens, the first at position 1."""
        encoded = encode(self.tokenizer, [(message.request, message.reply, message.text) for message in batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training and has_bfloat16_products()):
            hidden = self.encoder(input_ids=encoded.tokens, attention_mask=encoded.attention).last_hidden_state
        logits: torch.Tensor = self.head(hidden.float()).squeeze(-1)
        return logits, encoded.spans

    def save(self, path: Path) -> None:
        """Write adapter (float16) and head."""
        head = {"head.weight": self.head.weight, "head.bias": self.head.bias}
        save_with_adapter(self.encoder, head, path)


def compute_loss(network: Network, batch: Sequence[Message]) -> torch.Tensor:
    """Mean over the messages of the cross-entropy of their tokens."""
    logits, spans = network(batch)
    losses = []
    for row, message, places in zip(logits, batch, spans, strict=True):
        if places:
            quoted = torch.tensor([float(message.quoted[begin:end].any()) for begin, end in places])
            target = quoted * (1 - SMOOTHING) + SMOOTHING / 2
            losses.append(nn.functional.binary_cross_entropy_with_logits(row[1 : len(places) + 1], target))
    return torch.stack(losses).mean()


def draw_epoch(
    marked: Sequence[Message], own: Sequence[Message], others: Sequence[str], random: np.random.Generator
) -> list[list[Message]]:
    """One epoch's batches, of texts of similar length."""
    drawn = [exchange(message, others, random) if random.random() < EXCHANGED else message for message in marked]
    chosen = random.permutation(len(own))[:OWN]
    drawn = [break_lines(message, random) for message in [*drawn, *(own[int(index)] for index in chosen)]]
    order = [drawn[int(index)] for index in random.permutation(len(drawn))]
    batches = []
    for start in range(0, len(order), 8 * BATCH):
        block = sorted(order[start : start + 8 * BATCH], key=lambda message: len(message.text))
        batches += [block[begin : begin + BATCH] for begin in range(0, len(block), BATCH)]
    return [batches[int(index)] for index in random.permutation(len(batches))]


def fit(marked: Sequence[Message], seed: int = 0) -> Network:
    """Train a network on marked messages, and on those of `examples` as the owner's own."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    loaded = examples.load(1, ROUNDS)
    scenes = [example for example in loaded if example.group.startswith("scene ")]
    # Every third scene: they are ten times as many as the others, among which are next tasks with a text in them.
    drawn = [*scenes[::3], *(example for example in loaded if not example.group.startswith("scene "))]
    own = [Message(*example.texts, np.zeros(len(example.message), dtype=bool)) for example in drawn]
    quotations = [
        part for message in marked for part, quoted in split_parts(message) if quoted and len(part) > SHORTEST
    ]
    objections = [example.message for example in scenes if example.label == -1 and len(example.message) > SHORTEST]
    others = [*quotations, *(objections[int(n)] for n in random.permutation(len(objections))[: len(quotations)])]
    network = Network()
    adapter = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [{"params": adapter, "lr": ADAPTER_LR}, {"params": network.head.parameters(), "lr": HEAD_LR}]
    )
    plan = [batch for _ in range(EPOCHS) for batch in draw_epoch(marked, own, others, random)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [ADAPTER_LR, HEAD_LR], total_steps=len(plan) + 1, pct_start=0.1, anneal_strategy="linear"
    )
    network.train()
    for number, batch in enumerate(plan, start=1):
        loss = compute_loss(network, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(adapter, 1.0)
        optimizer.step()
        schedule.step()
        if number % 50 == 0:
            print(f"step {number}/{len(plan)} loss {loss.item():.3f}", flush=True)
    return network.eval()


@torch.inference_mode()
def measure(network: Network, held: Sequence[Message]) -> tuple[float, float]:
    """Share recognised of the sentences that are somebody else's, and of the owner's."""
    found: dict[bool, list[bool]] = {True: [], False: []}
    for message in held:
        logits, spans = network([message])
        for begin, end in find_sentences(message.text):
            if places := locate_tokens(spans[0], begin, end):
                is_quoted = bool(message.quoted[begin:end].mean() > 0.5)
                found[is_quoted].append(float(logits[0, places].mean().sigmoid()) >= QUOTED)
    return float(np.mean(found[True])), float(np.mean(found[False]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the weights."""
    options = train.parse_options("quotations", __doc__, {ENCODER.name: WEIGHTS}, WRITERS, arguments)
    marked = [message for writer in WRITERS if writer != options.hold_out for message in load_messages(writer)]
    network = fit(marked)
    network.save(options.output)
    if options.hold_out:
        found, wrongly = measure(network, load_messages(options.hold_out))
        print(f"held out {options.hold_out}: {found:.3f} of the quoted sentences, {wrongly:.3f} of the owner's")


if __name__ == "__main__":
    main()
