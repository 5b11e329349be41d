"""Tiny random models of the families that people serve, with the family's own chat template.

Two layers each (four where layers of two kinds alternate), the bundled model's vocabulary with the template's own
special tokens added. The templates are those that TRL ships to recognise a family by.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM as CausalLM
from transformers import AutoModelForImageTextToText as ImageTextToText
from transformers import (
    AutoTokenizer,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
)

from clawrl_trl.tiny import MODEL_PATH

SPECIAL = re.compile(r"<\|?[a-z_]+\|?>|<\|[a-z_]+\||\[/?[A-Z_]+\]")
"""What a template may write that the family's tokenizer has as one token."""

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 8192,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}

MISTRAL = """
{%- for message in messages %}
  {%- if message.role == "user" %}{{- "[INST] " + message.content + " [/INST]" }}
  {%- elif message.role == "assistant" %}{{- " " + message.content + "</s>" }}
  {%- else %}{{- "[SYSTEM_PROMPT] " + message.content + "[/SYSTEM_PROMPT]" }}{%- endif %}
{%- endfor %}"""
"""TRL has no template of Mistral's; this is the family's layout for chats without tools."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
DELTA = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")


@dataclass(frozen=True)
class FamilyModel:
    """One family.

    Args:
        name (`str`): What people call it.
        template (`str`): TRL's name of its chat template, without its ending.
        configure: Makes the configuration from the keywords that all share.
        end (`str`): The token that ends a reply.
        call_end (`str`, *optional*): The token that ends a call of a tool instead.
        targets (`tuple[str, ...]`): Modules that an adapter trains.
        calls (`bool`): Whether its template takes tools.
        reasons (`bool`): Whether its template writes reasoning.
        is_embedded (`bool`): Whether the embedded engine serves it.
    """

    name: str
    template: str
    configure: Callable[..., PreTrainedConfig]
    end: str = "<|im_end|>"
    targets: tuple[str, ...] = (*ATTENTION, *MLP)
    calls: bool = True
    reasons: bool = False
    is_embedded: bool = True
    call_end: str | None = None

    def __str__(self) -> str:
        return self.name

    def make_model(self, **changes: Any) -> PreTrainedModel:
        """Make a seeded random model, of text alone or with pictures."""
        torch.manual_seed(0)
        tokenizer = make_tokenizer(self.template, self.end)
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        config = self.configure(vocab_size=len(tokenizer), **ids | changes)
        kind: Any = ImageTextToText if hasattr(config, "vision_config") else CausalLM
        model: PreTrainedModel = kind.from_config(config, dtype=torch.float32)
        if self.call_end:
            ends = [self.end, self.call_end]
            model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ends)
        return model.eval()

    def save(self, folder: Path, **changes: Any) -> Path:
        """Save the model and its tokenizer to a folder."""
        self.make_model(**changes).save_pretrained(folder)
        make_tokenizer(self.template, self.end).save_pretrained(folder)
        return folder


def find_family(name: str) -> FamilyModel:
    """Find a family by its name."""
    return next(family for family in FAMILY_MODELS if family.name == name)


def make_tokenizer(template: str, end: str) -> PreTrainedTokenizerBase:
    """The bundled tokenizer with a family's template and the special tokens that stand in it."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(MODEL_PATH)
    text = MISTRAL
    if template != "mistral":
        text = (resources.files("trl") / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    tokenizer.chat_template = text
    # The bundled tokenizer's own, which the files of these families lack.
    tokenizer.response_template = None
    tokenizer.init_kwargs.pop("response_template", None)
    tokens = sorted({*SPECIAL.findall(text), end} - set(tokenizer.get_vocab()))
    tokenizer.add_tokens(tokens)
    tokenizer.add_special_tokens({"eos_token": end})
    return tokenizer


def _configure_vl(vocab_size: int, **ids: Any) -> Qwen3VLConfig:
    tokenizer = make_tokenizer("qwen3_vl", "<|im_end|>")
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
    parts = {"vision_start": "vision_start", "vision_end": "vision_end", "image": "image_pad", "video": "video_pad"}
    return Qwen3VLConfig(
        text_config={**SIZES, "vocab_size": vocab_size, "rope_parameters": rope, **ids},
        vision_config={**vision, "deepstack_visual_indexes": [0, 1]},
        **{f"{part}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for part, name in parts.items()},
        **{key: value for key, value in ids.items() if key != "bos_token_id"},
    )


FAMILY_MODELS = (
    FamilyModel("qwen2.5", "qwen2_5", lambda **fields: Qwen2Config(**_without(SIZES, "head_dim"), **fields)),
    FamilyModel(
        "qwen3", "qwen3", lambda **fields: Qwen3Config(**SIZES, tie_word_embeddings=True, **fields), reasons=True
    ),
    FamilyModel(
        "qwen3.5",
        "qwen3_5_think",
        lambda **fields: Qwen3_5TextConfig(**{**SIZES, **LINEAR, **fields}),
        targets=(*ATTENTION, *MLP, *DELTA),
        is_embedded=False,
    ),
    FamilyModel("qwen3-vl", "qwen3_vl", _configure_vl, is_embedded=False),
    FamilyModel(
        "qwen3-moe",
        "qwen3",
        lambda **fields: Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, **fields),
        targets=ATTENTION,
        reasons=True,
    ),
    FamilyModel("llama3", "llama3_1", lambda **fields: LlamaConfig(**SIZES, **fields), "<|eot_id|>"),
    FamilyModel(
        "gemma3",
        "gemma3",
        lambda **fields: Gemma3TextConfig(
            **{**SIZES, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], **fields}
        ),
        "<end_of_turn>",
        calls=False,
    ),
    FamilyModel(
        "mistral",
        "mistral",
        lambda **fields: MistralConfig(**{**SIZES, "sliding_window": None, **fields}),
        "</s>",
        calls=False,
    ),
    FamilyModel(
        "gpt-oss",
        "gptoss",
        lambda **fields: GptOssConfig(
            **{**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, **fields}
        ),
        "<|return|>",
        ATTENTION,
        reasons=True,
        call_end="<|call|>",
    ),
)


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
