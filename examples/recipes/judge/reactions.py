"""Go on training the language model, on what owners said after replies that were and that were not as asked for.

    PYTHONPATH=examples python -m recipes.judge.reactions --hold_out study --threads 2 --output /tmp/out.safetensors
    PYTHONPATH=examples python -m recipes.judge.reactions --threads 2 --output reactions.safetensors

The writers' messages are those of the reader of acceptance, and what some of them wrote that says nothing of the
reply, each read once. With them come messages of the corpus, with the probabilities that the classifier finds now
beside their labels, so that it forgets little. The layers up to the one that the reader of acceptance reads stay as
they are, and its head with them; that of lessons, which reads the last one, is to be trained anew. What ships was made
with ten of the writers and is a mean with the weights before, in which these count twice; a second pass with others
was made and not used (benchmarks/results/judge.md).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from safetensors.torch import load_file

from clawrl_trl.judge.classifier.encoders import ENCODERS, MIDDLE, QWEN
from recipes.judge import acceptance, distil, heads, train
from recipes.judge.example import Example

CHATS, MESSAGES, SEED = 150, 7, 91
"""Replies of the corpus, the most messages after each, and the seed that draws both."""
ADAPTER_LR = 2e-4
TRAINABLE = "|".join(rf"layers\.{layer}\." for layer in range(MIDDLE, 28))


def load_reactions(writer: str) -> list[Example]:
    """What one writer had owners say."""
    return [
        Example(row["request"], row["reply"], row["message"], label=row["label"], group=writer, weight=1.0)
        for row in heads.read_rows("acceptance", writer)
    ]


def draw_known() -> list[Example]:
    """Messages of the corpus that are trained on anyway, after `CHATS` replies."""
    chats: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in train.draw_chats(SEED, train.split_groups(len(distil.SHARES)), distil.SHARES):
        chats[example.request, example.response].append(example)
    random = np.random.default_rng(SEED)
    with_reply = [messages for context, messages in chats.items() if any(context)]
    drawn = [with_reply[int(number)] for number in random.permutation(len(with_reply))[:CHATS]]
    return [chat[int(number)] for chat in drawn for number in random.permutation(len(chat))[:MESSAGES]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the weights, and measure on the writer held out, if there is one."""
    encoder = ENCODERS[QWEN]
    options = train.parse_options("reactions", __doc__, {QWEN: encoder.classifier}, acceptance.WRITERS, arguments)
    written = {writer: load_reactions(writer) for writer in acceptance.WRITERS}
    taught = [example for writer, rows in written.items() if writer != options.hold_out for example in rows]
    known = distil.teach(draw_known(), encoder)
    network = train.fit(
        [*taught, *known], SEED, encoder, start=encoder.classifier, adapter_lr=ADAPTER_LR, trainable=TRAINABLE
    )
    network.save(options.output, float(load_file(encoder.classifier)["temperature"]))
    if options.hold_out:
        found, wrongly = train.measure_known(network, written[options.hold_out], 0.5)
        print(f"held out {options.hold_out}: {found:.3f} of the objections, {wrongly:.3f} of the approvals")


if __name__ == "__main__":
    main()
