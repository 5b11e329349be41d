"""A small language model that reads chats as the judge's does."""

import torch
from transformers import Qwen2Config, Qwen2Model


def make_chat_model(layers: int = 3) -> Qwen2Model:
    """A model with random weights, always the same."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return Qwen2Model(config).eval()
