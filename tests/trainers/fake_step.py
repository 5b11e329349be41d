"""A training step of a Qwen3 with LoRA on fake tensors: the bytes that it would take, at any size, on any machine."""

from typing import Any

import torch
from live_bytes import LiveBytes
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from clawrl_trl.trainers.compat import keep_input_dtype
from clawrl_trl.trainers.terms.divergence import _sum_gaps
from clawrl_trl.trainers.terms.lm_head import LMHead, map_chunks

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "Qwen3-8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
VOCABULARY = 151_936


def make_config(name: str, layers: int | None = None) -> Qwen3Config:
    """The configuration of a named model, with fewer layers if asked for."""
    values = {**ARCHITECTURES[name], **({} if layers is None else {"num_hidden_layers": layers})}
    return Qwen3Config(
        **values,
        vocab_size=VOCABULARY,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=name != "Qwen3-8B",
    )


def make_model(config: Qwen3Config, dtype: torch.dtype, rank: int = 16) -> torch.nn.Module:
    """The model and its float32 adapter on the device "meta"."""
    with torch.device("meta"):
        base = Qwen3ForCausalLM(config).to(dtype)
        lora = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model: torch.nn.Module = get_peft_model(base, lora, low_cpu_mem_usage=True)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    return model


def fill(model: Any, config: Qwen3Config) -> None:
    """Put a model on the processor and give it random weights; faster than to initialise as its class does."""
    model.to_empty(device="cpu")
    embeddings = None if config.tie_word_embeddings else model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            # Rows of tokens that do not occur take no memory as long as nobody writes to them.
            (parameter[:1] if parameter is embeddings else parameter).uniform_(-0.03, 0.03)
    # Its frequencies are a buffer that no file of weights has.
    model.get_base_model().model.rotary_emb = Qwen3RotaryEmbedding(config)


def replace_tensors(model: torch.nn.Module) -> None:
    """Put tensors of the mode that is on in the place of a model's own, which stay shared where they were."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if id(parameter) not in made:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                    made[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def is_narrow(model: torch.nn.Module) -> bool:
    """Whether the base is bfloat16, so that a trainer would use autocast."""
    return any(parameter.dtype is torch.bfloat16 for parameter in model.parameters())


def run_pass(model: Any, ids: torch.Tensor, reply: int) -> None:
    """Forward and backward pass of a reply's log-probabilities and exact divergence, the head's part in chunks."""
    backbone = model.get_base_model()
    head = LMHead(backbone.lm_head.weight, None)

    def score(states: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        logits = head.logits(states)
        return logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)

    def diverge(states: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            base_logits = head.logits(base)
        return _sum_gaps(head.logits(states), base_logits)

    with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow(model)):
        # A row alone has no mask; transformers can't tell that of tensors without content, and would make one.
        no_mask = {"full_attention": None}
        hidden = backbone.model(input_ids=ids, attention_mask=no_mask, use_cache=False).last_hidden_state
        states = hidden[0, -reply - 1 : -1]
        base = states.detach().clone()  # of as many bytes as those of the pass with the adapter off
        loss = map_chunks(score, states, ids[0, -reply:]).sum() + map_chunks(diverge, states, base).sum()
    loss.backward()


def prepare(model: Any, *, checkpointing: bool = True, casts: bool = False) -> None:
    """Set the model up as a trainer does."""
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    if not casts:
        keep_input_dtype(model)
    model.train()


def count_pass(model: torch.nn.Module, tokens: int, reply: int = 512) -> int:
    """Largest number of bytes that a pass holds beside weights and optimizer: activations, gradients, head."""
    ids = torch.zeros(1, tokens, dtype=torch.long)
    with LiveBytes([*model.parameters(), *model.buffers(), ids]) as live:
        run_pass(model, ids, reply)
    return live.peak


def measure_pass(
    name: str,
    tokens: int,
    *,
    layers: int | None = None,
    checkpointing: bool = True,
    casts: bool = False,
    reply: int = 512,
    rank: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """What `count_pass` gives of a model that is made for it, whose tensors have no content.

    Args:
        name: One of `ARCHITECTURES`.
        tokens: Tokens of the pass.
        layers: Number of layers, if not the model's.
        checkpointing: Whether a layer's inside is computed again.
        casts: Whether PEFT casts the inputs of the adapter's layers.
        reply: Tokens at the end that are the reply.
        rank: Rank of the adapter.
        dtype: Type of the base.
    """
    model = make_model(make_config(name, layers), dtype, rank)
    with FakeTensorMode(allow_non_fake_inputs=True):
        replace_tensors(model)
        prepare(model, checkpointing=checkpointing, casts=casts)
        return count_pass(model, tokens, reply)
