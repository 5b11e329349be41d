"""Train the reader of tool results that report no failure.

    PYTHONPATH=examples python -m recipes.judge.results --hold_out web --threads 2 --output /tmp/results.safetensors
    PYTHONPATH=examples python -m recipes.judge.results --threads 2

`data/results` holds tool calls by eight writers, each with the owner's request, the calls and their results: a third
brought what was asked, a third did not, of a third nothing can be said. Most come in threes, with the same tool and
nearly the same result after requests that make a success, a failure or neither of it. The network is that of `train`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from clawrl_trl.judge.classifier.result_reader import ENCODER, LEAST_SUCCESS, arrange_texts
from clawrl_trl.judge.tools.results import ToolResult
from recipes.judge import train
from recipes.judge.corpus import DATA
from recipes.judge.example import Example
from recipes.judge.network import Network

WRITERS = ("agents", "business", "coding", "engineering", "everyday", "office", "steps", "web")
EPOCHS, ADAPTER_LR = 6, 1e-3


def load_results(writer: str) -> list[Example]:
    """One writer's results."""
    lines = (DATA / "results" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    return [example for row in map(json.loads, lines) for example in split_case(row)]


def split_case(row: Mapping[str, Any]) -> Iterator[Example]:
    """The results of one case as examples; of parallel ones only those that all succeeded are known one by one."""
    calls, results, label = row["calls"], row["results"], row["label"]
    if len(calls) > 1 and label != 1:
        return
    for call, text in zip(calls, results, strict=True):
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        texts = arrange_texts(row["request"], ToolResult(text, call["name"], arguments))
        yield Example(*texts, label, f"result {row['request']}", 1.0)


def measure(network: Network, held: Sequence[Example]) -> tuple[float, float]:
    """Share of the successes that keep their approval, and of the others."""
    kept = torch.tensor(train.compute_logits(network, held)).softmax(1)[:, 2].numpy() >= LEAST_SUCCESS
    worked = np.array([example.label == 1 for example in held])
    return float(kept[worked].mean()), float(kept[~worked].mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the weights."""
    options = train.parse_options("results", __doc__, {ENCODER.name: ENCODER.classifier}, WRITERS, arguments)
    drawn = [example for writer in WRITERS if writer != options.hold_out for example in load_results(writer)]
    network = train.fit(drawn, encoder=ENCODER, adapter_lr=ADAPTER_LR, epochs=EPOCHS)
    network.save(options.output, temperature=1.0)
    if options.hold_out:
        kept, wrongly = measure(network, load_results(options.hold_out))
        print(f"held out {options.hold_out}: {kept:.3f} of the successes are kept, {wrongly:.3f} of the others")


if __name__ == "__main__":
    main()
