"""Models for the engine's tests: a small Qwen3 that has learnt a handful of replies by heart, and policies on it.

Replies by heart make tool calls, reasoning and emoji appear on demand; on any other prompt the model has a real,
spread-out distribution to sample from.
"""

import json
import random
from pathlib import Path
from typing import Any

import torch
import trl
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Compute.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call>'
SECOND_CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "4*5"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "calculator", "arguments": {\n</tool_call> oops'
SHAPELESS = '<tool_call>\n{"nom": 1}\n</tool_call>'

BY_HEART: dict[str, tuple[str, bool]] = {
    "hello": ("Hello there, friend! 👋🏽 How are you – well?", False),
    "add": (f"Let me see.\n{CALL}", True),
    "twice": (f"{CALL}\n{SECOND_CALL}", True),
    "broken": (f"Hm.\n{BROKEN}", True),
    "shapeless": (SHAPELESS, True),
    "think": ("<think>\nFirst this, then that.\n</think>\n\nThe answer is 5.", False),
    "plan": (f"<think>\nI need a tool.\n</think>\n\n{CALL}", True),
    "lines": ("One.\n\nTwo < three.\n", False),
}
"""What the model replies, word for word, to a user who says the key; and whether it is offered tools.

It was asked to think where it does: an engine may take an unmarked reply to a model that should think for thinking.
"""


def _tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    corpus = [reply.replace("👋🏽", "") for reply, _ in BY_HEART.values()] * 9
    bpe.train_from_iterator([*corpus, *[line for line in template.split('"') if "#" in line] * 9], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"], special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


def conversation(word: str) -> dict[str, Any]:
    """The request that makes the model reply by heart."""
    request: dict[str, Any] = {"messages": [{"role": "user", "content": word}]}
    request["chat_template_kwargs"] = {"enable_thinking": _thinks(word)}
    return request | ({"tools": TOOLS} if BY_HEART[word][1] else {})


def _thinks(word: str) -> bool:
    return BY_HEART[word][0].startswith("<think>")


def _examples(tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    examples = []
    for word, (reply, offered) in BY_HEART.items():
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": word}],
            tools=TOOLS if offered else None,
            add_generation_prompt=True,
            enable_thinking=_thinks(word),
            tokenize=False,
        )
        prompt = tokenizer(text, add_special_tokens=False).input_ids
        examples.append((prompt, tokenizer(reply + "<|im_end|>", add_special_tokens=False).input_ids))
    return examples


def build_base(folder: Path) -> None:
    """Train the model until it knows its replies, and save it."""
    torch.manual_seed(0)
    random.seed(0)
    tokenizer = _tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    examples = _examples(tokenizer)
    longest = max(len(prompt) + len(reply) for prompt, reply in examples)
    ids = torch.full((len(examples), longest), tokenizer.pad_token_id)
    labels = torch.full((len(examples), longest), -100)
    for row, (prompt, reply) in enumerate(examples):
        ids[row, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        labels[row, len(prompt) : len(prompt) + len(reply)] = torch.tensor(reply)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if loss.item() < 0.01:
            break
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_adapter(base: Path, folder: Path, seed: int, **options: Any) -> None:
    """A LoRA adapter that changes the model's mind noticeably."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", **options))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)


def build_full(base: Path, folder: Path) -> None:
    """The whole model with changed weights."""
    torch.manual_seed(3)
    model = Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)


def build_all(folder: Path) -> None:
    """Everything the tests need, below one folder."""
    torch.set_num_threads(1)  # beside other test processes, threads of a small model mostly wait for each other
    base = folder / "base"
    build_base(base)
    for name, seed in (("one", 1), ("two", 2)):
        build_adapter(base, folder / name, seed)
    build_adapter(base, folder / "dora", 4, use_dora=True)
    build_full(base, folder / "full")
    (folder / "done").write_text(json.dumps(sorted(BY_HEART)))
