"""How well the rules judge reads people: `PYTHONPATH=examples python benchmarks/judge.py`.

Four ways of judging the same cases (tests/judge/cases.jsonl, none of which the classifier was trained on), each
inside the same rules for feedback and tool results: counted words alone, VADER's sentiment (pip install
vaderSentiment), the encoder as published with a linear head, and the classifier that ships. A second set are the
personas' own messages, written independently of the judge. Accuracy counts an abstention as 0. A third are plain
short reactions in many languages (tests/judge/reactions.json): of them the share of right ones counts those that were
decided, and the wrong ones are those in which the score is the opposite of what was meant, or a question got one.
"""

import argparse
import json
import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from clawrl_trl.json_lines import split_lines
from clawrl_trl.judge import features
from clawrl_trl.judge.classifier import model, reader
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.rules import Classify, RulesJudge
from clawrl_trl.judge.turn import JudgedTurn
from recipes.judge import examples

CASES = Path(__file__).parent.parent / "tests" / "judge" / "cases.jsonl"
REACTIONS = CASES.with_name("reactions.json")
Case = tuple[str, JudgedTurn, int]


def make_turn(request: str, response: str, state: Sequence[dict], provenance: Sequence[str]) -> JudgedTurn:
    return JudgedTurn(
        turn_id="t",
        session_id="s",
        messages=({"role": "user", "content": request},),
        tools=None,
        response={"role": "assistant", "content": response},
        next_state=tuple(state),
        next_state_provenance=tuple(provenance),
        feedback=(),
        policy_version=0,
    )


def read_cases() -> list[Case]:
    rows = [json.loads(line) for line in split_lines(CASES.read_text())]
    return [
        (
            "words" if row["provenance"] == ["owner"] else "tools and events",
            make_turn(row["request"], row["response"], row["next_state"], row["provenance"]),
            row["score"],
        )
        for row in rows
    ]


def make_persona_cases(count: int = 100) -> list[Case]:
    """Objections, approvals and next tasks in the personas' words."""
    from clawrl_trl.envs.chat.personas import PERSONAS

    rng = random.Random(7)
    cases: list[Case] = []
    for name, make in PERSONAS.items():
        persona = make()
        now, then = persona.tasks(3, "train", count), persona.tasks(4, "train", count)
        for number, task in enumerate(now):
            bad = "**Step 1:** Read.\n\n**Final answer:** 12" if name == "student" else "**Grade:** incorrect."
            good = "You start with 5 and add 7, so 5 + 7 = 12. The answer is 12."
            request = persona.opening(task, rng)
            exchanges = [
                (bad, persona.react(task, bad, 1 + number % 2, rng).text, -1),
                (good, persona._approval(rng), 1),
                (good, persona.opening(then[number], rng), 1),
            ]
            cases += [
                (f"persona {name}", make_turn(request, reply, [{"role": "user", "content": text}], ["owner"]), score)
                for reply, text, score in exchanges
            ]
    return cases


def classify_by_words(request: str, response: str, message: str) -> model.Opinion:
    """Word lists alone: more approving than objecting cues, or the other way round."""
    first = (features.split_sentences(message) or [""])[0]

    def count(names: str) -> int:
        return sum(bool(features.CUES[name].search(first)) for name in names.split())

    plus = count("approval approval_first next_first new_task_first task happy_emoji")
    minus = count("change_first wish contrast no_first degree redo wrong raw_error sad_emoji")
    score = 1 if plus > minus else -1 if minus > plus else None
    return model.Opinion(score, (0.0, 0.0, 0.0))


def make_vader_classifier() -> Classify:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()

    def classify(request: str, response: str, message: str) -> model.Opinion:
        compound = analyzer.polarity_scores(message)["compound"]
        return model.Opinion(1 if compound >= 0.05 else -1 if compound <= -0.05 else None, (0.0, 0.0, 0.0))

    return classify


def make_linear_head() -> Classify:
    """The encoder without the adapter: logistic regression on its embeddings and the cues."""
    torch.set_num_threads(1)
    minilm = ENCODERS[MINILM]
    tokenizer, encoder = minilm.load_tokenizer(), minilm.load_model()
    data = examples.load()

    def row(request: str, response: str, message: str) -> np.ndarray:
        with torch.inference_mode():
            batch = reader.tokenise(tokenizer, [(request, response, message)], minilm)
            embedding = reader.embed(encoder, batch)[0].numpy()
        return np.concatenate(
            [embedding * reader.EMBEDDING_WEIGHT, features.compute_features(request, response, message)]
        )

    x = torch.tensor(np.stack([row(*example.texts) for example in data]))
    y = torch.tensor([model.LABELS.index(example.label) for example in data])
    share = torch.tensor([example.weight for example in data])
    head = torch.nn.Linear(x.shape[1], 3)
    torch.nn.init.zeros_(head.weight)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(head(x), y, reduction="none")
        loss = (losses * share).sum() / share.sum() + 0.005 * head.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    return lambda *texts: model.decide(weight @ row(*texts) + bias)


def measure(classify: Classify, cases: Sequence[Case]) -> dict[str, float]:
    judge = RulesJudge(classify)
    pairs = [(score, judge.decide(turn).score or 0) for _, turn, score in cases]
    return {
        "accuracy": sum(a == b for a, b in pairs) / len(pairs),
        "abstained": sum(b == 0 for _, b in pairs) / len(pairs),
        "wrong sign": sum(a * b == -1 for a, b in pairs) / len(pairs),
    }


def measure_reactions(classify: Classify) -> dict[str, dict[str, float]]:
    """By language, English by its split: how many, and the shares abstained, right of those decided, and wrong."""
    data = json.loads(REACTIONS.read_text())
    judge = RulesJudge(classify)
    decided: dict[str, list[tuple[float | None, dict]]] = {}
    for reaction in data["reactions"]:
        request, reply = data["contexts"][reaction["context"]]
        state = [{"role": "user", "content": reaction["message"]}]
        name = f"en, {reaction['split']}" if reaction["language"] == "en" else reaction["language"]
        score = judge.decide(make_turn(request, reply, state, ["owner"])).score
        decided.setdefault(name, []).append((score, data["kinds"][reaction["kind"]]))
    return {
        name: {
            "n": len(pairs),
            "abstained": sum(score is None for score, _ in pairs) / len(pairs),
            "right of decided": sum(score is not None and score == kind["right"] for score, kind in pairs)
            / max(1, sum(score is not None for score, _ in pairs)),
            "wrong": sum(score in kind["wrong"] for score, kind in pairs) / len(pairs),
        }
        for name, pairs in decided.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    options = parser.parse_args()
    cases = read_cases() + make_persona_cases()
    kinds = list(dict.fromkeys(kind for kind, _, _ in cases))
    ways: dict[str, Callable[[], Classify]] = {
        "word lists": lambda: classify_by_words,
        "VADER": make_vader_classifier,
        "encoder + linear head": make_linear_head,
        "shipped classifier": model.Classifier,
    }
    results = {}
    for name, make in ways.items():
        classify = make()
        results[name] = {kind: measure(classify, [case for case in cases if case[0] == kind]) for kind in kinds}
    reactions = measure_reactions(classify)
    if options.json:
        print(json.dumps({**results, "reactions": reactions}, indent=2))
        return
    print("| judge | cases | n | accuracy | abstained | wrong sign |\n|---|---|---|---|---|---|")
    for name, by_kind in results.items():
        for kind, values in by_kind.items():
            count = sum(case[0] == kind for case in cases)
            print(f"| {name} | {kind} | {count} |", " | ".join(f"{100 * v:.1f}%" for v in values.values()), "|")
    print("\n| shipped classifier, reactions | n | abstained | right of decided | wrong |\n|---|---|---|---|---|")
    for name, values in reactions.items():
        shares = (f"{100 * values[key]:.1f}%" for key in ("abstained", "right of decided", "wrong"))
        print(f"| {name} | {values['n']} |", " | ".join(shares), "|")
    texts = [re.sub(r"\s+", " ", str(turn.next_state[0].get("content"))) for _, turn, _ in cases[:100]]
    started = time.perf_counter()
    for text in texts:
        classify("request", "response", text)
    print(f"\n{10 * (time.perf_counter() - started):.1f} ms a message; "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB resident at most")  # fmt: skip


if __name__ == "__main__":
    main()
