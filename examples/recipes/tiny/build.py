"""The recipe of the bundled model.

    PYTHONPATH=examples python -m recipes.tiny.build [--out DIR] [--seed 0] [--steps N]

Trains the tokenizer and the model from nothing but this package's own grammar, in six cycles of the learning rate
(drills alone in the second, to copy from the prompt; the fifth, the longest, is mostly chats), rounds the
weights to bfloat16 after each, measures what was saved, and writes the figures into the model card beside it.
"""

import argparse
import copy
import shutil
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import tokenizer, train
from recipes.tiny.evaluate import Measure, StyleGap, evaluate, load, make_table

THREADS = 2


def save(model: Qwen3ForCausalLM, tok: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model, tokenizer, generation config and licence to `out`; rounds the weights to bfloat16, also in `model`.

    The model itself stays in float32: converted as a whole it would go on with rounded rotary frequencies, which are
    no weights, and learn positions that nobody who loads it has.
    """
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tok.save_pretrained(out)
    licence = resources.files("clawrl_trl.tiny") / "model" / "LICENSE"
    if licence.is_file() and out.resolve() != MODEL_PATH.resolve():
        shutil.copy(str(licence), out / "LICENSE")


_CARD = """---
license: apache-2.0
language: [en]
library_name: transformers
pipeline_tag: text-generation
tags: [clawrl-trl, qwen3, tiny]
---
# clawrl-tiny

A Qwen3-architecture model of {millions:.1f} million parameters that does short arithmetic homework. It is the starting
point of clawrl-trl's live loop on a plain machine: small enough to train on two cores while it chats, and with
something to learn, since it mostly answers in one style and now and then in another.

## What it can do
- Solve word problems of one or two steps with small numbers (results up to 100), worked out step by step. By itself
  it answers in bold, numbered steps with a bold final answer, and about one time in sixteen in plain sentences.
- Grade a student's work when told the correct answer: by itself with a bare verdict, about one time in eleven with a
  warm and specific comment.
- Follow a style instruction (plain, bold, warm, curt, short, with steps) in the system prompt, in the user's message,
  in a hint block, or in the user's next message, which makes it rewrite its reply.
- Call a calculator tool in Qwen3's format and report its result; think in `<think>` with `enable_thinking=True`.
- Act in clawrl-trl's environments: it knows the form of an action (a call of `shell_exec`, `computer_use` or a tool, a
  bash block) and, in the easiest tasks, does what it is asked about one time in four, else something like it.

## What it can't do
Anything else, and some of the above not reliably: see the measures marked "missed". It knows a few dozen names,
objects and story patterns, no facts, and only the English that its grammar made. Larger numbers, longer problems,
other topics and long prompts are beyond it, and it may answer them wrongly in the same confident form. It was trained
on generated text only, on sequences of up to 768 tokens. It is not a product.

## How it was made
{made}

## Measured
On held-out problems and held-out wordings, sampled at temperature 1 from these very weights in float32
(`PYTHONPATH=examples python -m recipes.tiny.evaluate`). "fresh wording" means sentences from outside the grammar.
The last table shows the model as a teacher: how much a hint changes the probability of the first token of the wanted
and the other style.

{table}

Licence: Apache-2.0.
"""


def describe_build(recipe: "Recipe") -> str:
    """Describe for the card how a run of the recipe made a model."""
    steps = sum(cycle.steps for cycle in recipe.cycles)
    tokens = f"{steps * train.BATCH_TOKENS / 1e6:.0f} million"
    start = "from nothing" if recipe.start is None else f"continuing the model in `{recipe.start.name}`"
    cycles = ",\nthen ".join(
        f"{cycle.steps:,} steps from a peak of {cycle.learning_rate:g}"
        + (f", logits multiplied by {cycle.sharpened:g} before" if cycle.sharpened != 1 else "")
        for cycle in recipe.cycles
    )
    ended = f"; logits multiplied by {recipe.sharpened:g} at the end" if recipe.sharpened != 1 else ""
    compiled = " --compile" if recipe.compiled else ""
    command = f"PYTHONPATH=examples python -m recipes.tiny.build --seed {recipe.seed}{compiled}"
    return (
        f"`{command}`, {start}:\n{cycles}\n"
        f"(AdamW, cosine schedules, loss on replies{ended}); {tokens} tokens of conversations and drills from the\n"
        "grammar in `examples/recipes/tiny`, no other data. The same seed, machine and threads give the same weights."
    )


def make_card(measures: list[Measure], gaps: list[StyleGap], *, parameters: int, how: str) -> str:
    """The model card with the measured figures; `how` says how the weights were made."""
    return _CARD.format(millions=parameters / 1e6, made=how, table=make_table(measures, gaps))


@dataclass(frozen=True)
class Cycle:
    """One descent of the learning rate.

    Attributes:
        steps: optimiser steps.
        learning_rate: the peak it starts from.
        lessons: what is taught. First come sums and the forms of chats, then copying from the prompt: with drills of
            both from the start neither is learnt well. Slips come late: they are told apart by what the prompt says,
            and a model that has not learnt yet to look it up takes the whole for chance. In the end it is mostly
            chats, which prompts with tools, five times as long, keep from their share of the tokens.
        sharpened: the logits are multiplied by this before the cycle. A model so small never pushes what cannot follow
            quite to zero, and sampling finds it. Sharpened it has little to learn there, and a short
            cycle brings its choices (of a style, a wording, a slip) back to what was taught.
    """

    steps: int
    learning_rate: float = 2e-3
    lessons: train.Lessons = train.USUAL
    sharpened: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """The choices of one run.

    Attributes:
        seed: seeds tokenizer, weights, conversations (each cycle's its own) and measurement.
        cycles: descents of the learning rate, one after the other, each with a fresh optimiser.
        sharpened: the logits of the finished model are multiplied by this, too.
        count: cases per measure at the end; 0 skips the measurement and the card.
        compiled: train with torch.compile, which is faster and needs a C++ compiler.
        start: continue the model in this folder, with its tokenizer, instead of starting from nothing.
    """

    seed: int = 0
    cycles: tuple[Cycle, ...] = (
        Cycle(5400, lessons=train.Lessons(right=1.0, drills=0.2, copying=0.0, acting=0.06)),
        Cycle(300, 1.2e-3, train.Lessons(drills=1.0, copying=1.0)),
        Cycle(2400, 1.2e-3, train.Lessons(right=1.0, drills=0.27, copying=0.3, acting=0.08)),
        Cycle(2200, 1.2e-3, train.Lessons(right=0.3, drills=0.27, copying=0.3, acting=0.08)),
        Cycle(5000, 1.2e-3, train.Lessons(right=0.45)),
        Cycle(1500, 8e-4, train.Lessons(opening=4.0), sharpened=1.4),
    )
    sharpened: float = 1.15
    count: int = 300
    compiled: bool = False
    start: Path | None = None


def sharpen(model: Qwen3ForCausalLM, factor: float) -> None:
    """Multiply the logits of `model` by `factor`: at temperature 1 it then is what it was at `1 / factor`."""
    with torch.no_grad():
        model.model.norm.weight.mul_(factor)


def build(out: Path, recipe: Recipe) -> Path:
    """Make the model in `out`, replacing files of an earlier one, and return that folder.

    Raises:
        ValueError: if a cycle's steps are not positive.
    """
    if any(cycle.steps < 1 for cycle in recipe.cycles):
        raise ValueError(f"steps must be positive, got {[cycle.steps for cycle in recipe.cycles]}")
    if recipe.start is None:
        tok = tokenizer.build(recipe.seed)
        model = train.make_model(tok, recipe.seed)
    else:
        model, tok = load(recipe.start)
    for number, cycle in enumerate(recipe.cycles):
        sharpen(model, cycle.sharpened)
        train.train(
            model,
            tok,
            seed=recipe.seed + number,
            steps=cycle.steps,
            learning_rate=cycle.learning_rate,
            lessons=cycle.lessons,
            compiled=recipe.compiled,
        )
        save(model, tok, out)
    sharpen(model, recipe.sharpened)
    save(model, tok, out)
    if recipe.count:
        measures, gaps = evaluate(out, count=recipe.count, seed=recipe.seed)
        (out / "README.md").write_text(
            make_card(measures, gaps, parameters=model.num_parameters(), how=describe_build(recipe))
        )
    return out


def main() -> None:
    """The command line of the recipe."""
    usual = Recipe()
    parser = argparse.ArgumentParser(description="Build the bundled tiny model from nothing.")
    parser.add_argument("--out", type=Path, default=Path("tiny-model"), help="folder to write (default: tiny-model)")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--steps", type=int, help="one cycle of so many optimiser steps, not the usual six")
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="peak of that one cycle (default: 0.002)")
    parser.add_argument("--count", type=int, default=usual.count, help="cases per measure at the end; 0 skips it")
    parser.add_argument(
        "--threads", type=int, default=THREADS, help="torch threads (part of what makes it repeatable)"
    )
    parser.add_argument("--compile", action="store_true", help="train faster; needs a C++ compiler")
    parser.add_argument("--start", type=Path, help="continue the model in this folder")
    options = parser.parse_args()
    if options.steps is not None and options.steps < 1:
        sys.exit("--steps must be at least 1")
    if options.start is not None and not options.start.is_dir():
        sys.exit(f"--start: there is no folder {options.start}")
    torch.set_num_threads(options.threads)
    cycles = usual.cycles if options.steps is None else (Cycle(options.steps, options.learning_rate),)
    recipe = Recipe(
        seed=options.seed,
        cycles=cycles,
        sharpened=usual.sharpened if options.steps is None else 1.0,
        count=options.count,
        compiled=options.compile,
        start=options.start,
    )
    folder = build(options.out, recipe)
    print(f"wrote {folder}")
    if recipe.count:
        print((folder / "README.md").read_text().partition("## Measured")[2])


if __name__ == "__main__":
    main()
