"""Measures the tiny model: `PYTHONPATH=examples python -m recipes.tiny.evaluate [--model DIR] [--count N] [--seed S]`.

Replies are sampled at temperature 1, as they are served, from the weights as they are shipped (bfloat16) run in
float32. Each measure prints with its 95% Wilson interval and the bound it is meant to keep. `measure_style_gap` looks
at the model as a teacher: what a hint does to the probability of the first token.
"""

import argparse
import json
import math
import random
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import actions, dialogues
from recipes.tiny.cases import Case, add_hint, make_all_cases
from recipes.tiny.dialogues import Dialogue
from recipes.tiny.instructions import draw_instruction
from recipes.tiny.wishes import Wish

_AT_LEAST = {
    "solve: correct": 0.95,
    "solve: one style": 0.98,
    "grade: verdict": 0.97,
    "grade: one style": 0.97,
    "told": 0.9,
    "fresh": 0.8,
    "objection": 0.9,
    "next problem": 0.9,
    "thanks": 0.95,
    "tool": 0.9,
    "thinking": 0.9,
    "off topic": 0.9,
    **{f"{env}: well formed": 0.95 for env in actions.SCENES},
}
_BETWEEN = {"by itself": (0.05, 0.2), "at times": (0.1, 0.5)}
_LONGEST = 160


@dataclass(frozen=True)
class Measure:
    """One measured share.

    Attributes:
        name: what was counted.
        hits: how often it held.
        count: out of how many.
        low: lower end of the 95% Wilson interval.
        high: upper end.
    """

    name: str
    hits: int
    count: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share in [0, 1]."""
        return self.hits / self.count

    @property
    def bound(self) -> tuple[float, float]:
        """The range in which the share should be."""
        for ending, bound in _BETWEEN.items():
            if self.name.endswith(ending):
                return bound
        return max((least for name, least in _AT_LEAST.items() if self.name.startswith(name)), default=0.0), 1.0


def compute_wilson_interval(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share (Wilson, 1927), 95% by default."""
    share = hits / count
    center = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, center - half), min(1.0, center + half)


def load(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in float32 and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(path)


def render_prompt(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> str:
    """The rendered prompt, up to where the reply starts."""
    text = tokenizer.apply_chat_template(
        dialogue.messages,
        tools=dialogue.tools,
        add_generation_prompt=True,
        enable_thinking=dialogue.thinking,
        tokenize=False,
    )
    return str(text)


@torch.inference_mode()
def _sample_continuations(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, end: int, limit: int
) -> list[list[int]]:
    """Sampled continuations of left-padded prompts [B, L]; rows that have ended leave the batch."""
    continuations: list[list[int]] = [[] for _ in ids]
    rows = torch.arange(len(ids))
    ended = torch.zeros(len(ids), dtype=torch.bool)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for _ in range(limit):
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]
        ids = torch.multinomial(logits.softmax(-1), 1)
        ended |= ids[:, 0] == end
        for row, token, over in zip(rows.tolist(), ids[:, 0].tolist(), ended.tolist(), strict=True):
            if not over:
                continuations[row].append(token)
        if ended.all():
            break
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions = positions[:, -1:] + 1
        if ended.float().mean() > 0.2:
            running = (~ended).nonzero()[:, 0]
            cache.batch_select_indices(running)
            ids, mask, positions, rows, ended = (
                ids[running],
                mask[running],
                positions[running],
                rows[running],
                ended[running],
            )
    return continuations


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dialogues_: list[Dialogue],
    *,
    seed: int = 0,
    batch: int = 128,
    quiet: bool = False,
) -> list[str]:
    """One reply to each dialogue, sampled at temperature 1 without truncation of the distribution."""
    torch.manual_seed(seed)
    texts = [render_prompt(tokenizer, dialogue) for dialogue in dialogues_]
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    replies = [""] * len(texts)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for start in tqdm(range(0, len(order), batch), desc="sampling", unit="batch", disable=quiet):
        rows = order[start : start + batch]
        inputs = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True, add_special_tokens=False)
        continuations = _sample_continuations(model, inputs["input_ids"], inputs["attention_mask"], end, _LONGEST)
        for i, ids in zip(rows, continuations, strict=True):
            replies[i] = tokenizer.decode(ids, skip_special_tokens=True)
    return replies


def measure(cases: list[Case], replies: list[str]) -> list[Measure]:
    """The share of replies that satisfy each check."""
    hits_by_name: dict[str, list[bool]] = defaultdict(list)
    for case, reply in zip(cases, replies, strict=True):
        for name, check in case.checks.items():
            verdict = check(reply)
            if verdict is not None:
                hits_by_name[name].append(verdict)
    return [
        Measure(name, sum(hits), len(hits), *compute_wilson_interval(sum(hits), len(hits)))
        for name, hits in hits_by_name.items()
    ]


@dataclass(frozen=True)
class StyleGap:
    """Effect of a hint on the first token of a reply.

    Attributes:
        wanted: the style hinted at, "plain" or "warm".
        unhinted: mean probability that the reply opens in that style without a hint.
        spread: standard deviation of that probability over prompts.
        hinted: mean probability with the hint.
        gain: mean of ln(p_hinted / p_unhinted) of the wanted opening, in nats.
        loss: mean of ln(p_hinted / p_unhinted) of the other opening, in nats.
    """

    wanted: str
    unhinted: float
    spread: float
    hinted: float
    gain: float
    loss: float


@torch.inference_mode()
def _compute_bold_opening(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dialogues_: list[Dialogue]
) -> torch.Tensor:
    """The probability of each prompt's reply to open with "**"."""
    texts = [render_prompt(tokenizer, dialogue) for dialogue in dialogues_]
    bold = tokenizer.encode("**", add_special_tokens=False)
    rows = []
    for start in range(0, len(texts), 64):
        inputs = tokenizer(texts[start : start + 64], return_tensors="pt", padding=True, add_special_tokens=False)
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        logits = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            position_ids=positions,
            logits_to_keep=1,
        ).logits
        rows.append(logits[:, -1].softmax(-1)[:, bold[0]])
    return torch.cat(rows)


def measure_style_gap(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, wish: Wish, *, count: int = 300, seed: int = 0
) -> StyleGap:
    """Measure how strongly held-out hints for `wish` (plain or warm) move the first token of held-out requests."""
    rng = random.Random(f"{seed}-gap")
    make = dialogues.draw_grade_task if wish.tone else dialogues.draw_solve_task
    plain_prompts = []
    for _ in range(count):
        dialogue = dialogues.make_unasked(rng, make(rng, "heldout"))
        plain_prompts.append(Dialogue(dialogue.messages[:-1]))
    with_hint = [add_hint(dialogue, draw_instruction(rng, wish, "heldout")) for dialogue in plain_prompts]
    before = _compute_bold_opening(model, tokenizer, plain_prompts).double().clamp(1e-6, 1 - 1e-6)
    after = _compute_bold_opening(model, tokenizer, with_hint).double().clamp(1e-6, 1 - 1e-6)
    wanted = 1 - before
    return StyleGap(
        wanted=str(wish.form or wish.tone),
        unhinted=wanted.mean().item(),
        spread=wanted.std().item(),
        hinted=(1 - after).mean().item(),
        gain=((1 - after) / wanted).log().mean().item(),
        loss=(after / before).log().mean().item(),
    )


def make_table(measures: list[Measure], gaps: list[StyleGap]) -> str:
    """The figures as Markdown."""
    lines = ["| measure | share | 95% interval | n | meant |", "|---|---|---|---|---|"]
    for m in measures:
        least, most = m.bound
        goal = f">= {least:.0%}" if most == 1.0 else f"{least:.0%} to {most:.0%}"
        mark = "" if least <= m.share <= most else " (missed)"
        lines.append(
            f"| {m.name} | {m.share:.1%} | {m.low:.1%} to {m.high:.1%} | {m.count} | {goal if least else '-'}{mark} |"
        )
    lines += [
        "",
        "| hint | P(style) | over prompts | P(style, hinted) | gain, nats | other, nats |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {g.wanted} | {g.unhinted:.1%} | ±{g.spread:.1%} | {g.hinted:.1%} | {g.gain:+.2f} | {g.loss:+.2f} |"
        for g in gaps
    ]
    return "\n".join(lines)


def evaluate(path: Path, *, count: int = 300, seed: int = 0) -> tuple[list[Measure], list[StyleGap]]:
    """Every measure of the model in `path`, `count` cases each; seeded."""
    model, tokenizer = load(path)
    cases = make_all_cases(seed, count)
    replies = sample(model, tokenizer, [case.prompt for case in cases], seed=seed)
    gaps = [measure_style_gap(model, tokenizer, wish, seed=seed) for wish in (Wish(form="plain"), Wish(tone="warm"))]
    return measure(cases, replies), gaps


def main() -> None:
    """Print the table, and with --json write the figures."""
    parser = argparse.ArgumentParser(description="Measure the tiny model on held-out problems and wordings.")
    parser.add_argument("--model", type=Path, default=MODEL_PATH, help="model folder")
    parser.add_argument("--count", type=int, default=300, help="cases per measure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not options.model.is_dir():
        sys.exit(f"no model folder at {options.model}; give one with --model")
    measures, gaps = evaluate(options.model, count=options.count, seed=options.seed)
    print(make_table(measures, gaps))
    if options.json:
        options.json.write_text(
            json.dumps({"measures": [asdict(m) for m in measures], "gaps": [asdict(g) for g in gaps]}, indent=1)
        )


if __name__ == "__main__":
    main()
