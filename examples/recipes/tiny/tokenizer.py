"""The tiny model's tokenizer: byte-level BPE of 2,304 tokens, digits one by one, Qwen3's special tokens.

Byte-level, so any UTF-8 text encodes and decodes to itself. The chat template beside this file and the response
template below are saved with it, so `parse_response` takes replies apart without help.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.tiny.dialogues import dialogue
from recipes.tiny.instructions import draw_instruction
from recipes.tiny.render import render_pieces
from recipes.tiny.wishes import PHRASES

VOCABULARY = 2304
SAMPLES = 30_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE_PATH = Path(__file__).parent / "chat_template.jinja"

# What transformers' response parser needs to know; the same shape as Qwen3's.
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


_MARKUP = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKERS))))


def _generate_corpus(rng: random.Random, samples: int) -> Iterator[str]:
    """Return what people and the model write, without the markup between; instructions twice, for their many words."""
    for _ in range(samples):
        for text, _ in render_pieces(dialogue(rng)):
            yield from _MARKUP.split(text)
        yield f" {draw_instruction(rng, rng.choice(tuple(PHRASES)), 'train')}"


def build(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on conversations of the recipe; the same seed gives the same vocabulary."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_generate_corpus(random.Random(f"{seed}-tokenizer"), SAMPLES), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
        padding_side="left",
    )
    # Not "special": a server that skips special tokens must still show tool calls and thinking.
    tokenizer.add_tokens(list(MARKERS), special_tokens=False)
    tokenizer.chat_template = TEMPLATE_PATH.read_text()
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer
