"""Memory estimates for serving and training a model, by arithmetic alone.

The figures are sums of terms that can be checked one by one: so many bytes a parameter, a cached token, an adapter.
What no formula gives (a CUDA context, a framework's workspace) is a stated constant. The table of `docs/engines.md` is
printed by this module, `python -m clawrl_trl.doctor.memory`, and the doctor's memory check asks it about the
machine at hand.

Sources of the terms: AdamW keeps two moments a trained parameter (Loshchilov and Hutter, arXiv:1711.05101); QLoRA
keeps 4-bit weights with one float32 scale per block of 64 (Dettmers et al., arXiv:2305.14314); with recomputation a
layer's input is kept and one layer's inside at a time (Chen et al., arXiv:1604.06174). A layer's inside and the head's
part were counted on tensors without content; `benchmarks/memory.py` holds them against a pass that is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GIB = 2**30
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "4bit": 0.5 + 4 / 64}
"""Bytes a parameter of a linear layer takes."""
USABLE = 0.95
"""Share of a card that programs get: drivers and fragments take the rest."""
LEAST_CACHE = 16_384
"""Tokens of KV cache below which a colocated engine is called too small: four conversations of 4,096 tokens."""
CARDS = (8, 16, 24, 48, 80)
ENGINE_OVERHEAD = 1.5 * GIB
"""Bytes of an engine's CUDA context, workspace and graphs."""
GRAPHS = 0.7 * GIB
"""Bytes of vLLM's CUDA graphs, a part of them that `--enforce-eager` does without."""
HEAD_POSITIONS = 256
"""Positions whose logits the trainer holds at a time."""
HEAD_BYTES = 25
"""Bytes for each of them at the peak: the exact KL has the logits of policy and base and temporaries, all float32."""


@dataclass(frozen=True)
class Shape:
    """The numbers of a model's architecture that decide its memory.

    Args:
        linear: Parameters of the linear layers that an adapter goes to and that 4 bits can hold.
        other: All other parameters: embeddings, an untied head, norms.
        adapter_width: Sum of inputs and outputs over these linear layers; times the rank, an adapter's parameters.
        layers: Number of layers.
        hidden: Width of the residual stream.
        kept: Bytes that one layer keeps of a token for the backward pass, by the type of the base.
        passing: Bytes a token takes beside them while the layer's backward pass runs.
        vocab: Size of the vocabulary.
        kv_width: Numbers a token has in one layer's key cache; as many in its value cache.
    """

    linear: int
    other: int
    adapter_width: int
    layers: int
    hidden: int
    kept: Mapping[str, int]
    passing: Mapping[str, int]
    vocab: int
    kv_width: int

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.linear + self.other

    @classmethod
    def decoder(
        cls,
        *,
        layers: int,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int = 128,
        vocab: int = 151_936,
        tied: bool = False,
    ) -> "Shape":
        """A dense decoder of Qwen3's kind: gated MLP, grouped queries, normed queries and keys, no biases."""
        queries, keys = heads * head_dim, kv_heads * head_dim
        kept, passing = _count_layer_bytes(hidden, intermediate, queries + keys)
        matrices = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
        matrices += [(hidden, intermediate), (hidden, intermediate), (intermediate, hidden)]
        # Two norms a layer, those of its queries and keys (Qwen3's own), and one at the end.
        norms = layers * (2 * hidden + 2 * head_dim) + hidden
        return cls(
            linear=layers * sum(a * b for a, b in matrices),
            other=vocab * hidden * (1 if tied else 2) + norms,
            adapter_width=layers * sum(a + b for a, b in matrices),
            layers=layers,
            hidden=hidden,
            kept=kept,
            passing=passing,
            vocab=vocab,
            kv_width=keys,
        )

    @classmethod
    def of(cls, model: str | Path) -> "Shape":
        """The shape of any model that transformers knows, from its config alone; no weights are read.

        Raises:
            OSError: If there is no such model.
            ValueError: If transformers does not know its architecture.
        """
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(model))
        # On the device "meta", tensors have a shape and take no memory.
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        head = empty.get_output_embeddings()
        # Neither PEFT's "all-linear" nor 4-bit loading touches the head.
        linear = [module for module in empty.modules() if isinstance(module, torch.nn.Linear) and module is not head]
        parameters = sum(parameter.numel() for parameter in empty.parameters())
        return cls._count(config.get_text_config(), linear, parameters)

    @classmethod
    def _count(cls, config: Any, linear: "list[torch.nn.Linear]", parameters: int) -> "Shape":
        # The configs of many architectures name only what differs from the usual.
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * head_dim
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        kept, passing = _count_layer_bytes(config.hidden_size, inner, heads * head_dim + keys)
        weights = sum(module.weight.numel() for module in linear)
        return cls(
            linear=weights,
            other=parameters - weights,
            adapter_width=sum(module.in_features + module.out_features for module in linear),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            kept=kept,
            passing=passing,
            vocab=config.vocab_size,
            kv_width=keys,
        )

    def weights(self, kind: str) -> float:
        """Bytes of the weights; embeddings, head and norms stay bfloat16 beside 4-bit layers."""
        return self.linear * BYTES[kind] + self.other * max(BYTES[kind], 2.0)

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on all linear layers."""
        return rank * self.adapter_width


def _count_layer_bytes(hidden: int, intermediate: int, attention: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes a token takes in one layer, by the type of the base: what is kept, and what passes through it."""
    # Norms, rotations, projections and a gated MLP; norms and rotations are float32 whatever the base is, so half the
    # width isn't half the bytes. Counted at three shapes of Qwen3, with LoRA on every linear layer.
    kept, passing = 12 * hidden + 8 * attention + 8 * intermediate, 6 * hidden + 4 * intermediate
    wide_kept, wide_passing = 16 * hidden + 12 * attention + 16 * intermediate, 4 * hidden + 8 * intermediate
    narrow = ("bfloat16", "float16", "4bit")
    return {"float32": wide_kept, **dict.fromkeys(narrow, kept)}, {
        "float32": wide_passing,
        **dict.fromkeys(narrow, passing),
    }


@dataclass(frozen=True)
class Plan:
    """A plan of serving and training a model.

    Args:
        method: `"lora"` or `"full"`.
        engine: Type of the engine's weights and KV cache: `float32`, `bfloat16` or `4bit` (cache in bfloat16).
        trainer: Type of the trainer's frozen base with `"lora"`; with `"full"` all is float32.
        rank: Rank of the adapter.
        slots: Adapters the engine has room for at once.
        micro_tokens: Tokens of one forward and backward pass.
        checkpointing: Whether a layer's inside is computed again in the backward pass.
        engine_overhead: Bytes of context and workspace of the engine, beside weights and cache.
        trainer_overhead: The same of the trainer.
    """

    method: str = "lora"
    engine: str = "bfloat16"
    trainer: str = "bfloat16"
    rank: int = 16
    slots: int = 6
    micro_tokens: int = 4096
    checkpointing: bool = True
    engine_overhead: float = ENGINE_OVERHEAD
    trainer_overhead: float = 1.0 * GIB


@dataclass(frozen=True)
class Estimate:
    """Bytes, part by part.

    Args:
        engine: Parts of the engine, without its KV cache.
        trainer: Parts of the trainer.
        cached_token: Bytes of KV cache a token takes.
    """

    engine: Mapping[str, float]
    trainer: Mapping[str, float]
    cached_token: float
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.engine.values()) + sum(self.trainer.values()))

    def cache_in(self, memory: float) -> int:
        """Tokens of KV cache that are left when engine and trainer share `memory` bytes; negative when none are."""
        return int((memory - self.total) / self.cached_token)


def estimate(shape: Shape, plan: Plan) -> Estimate:
    """Estimate the memory that a plan takes.

    Args:
        shape: The model.
        plan: How it is served and trained.
    """
    # Beside 4-bit weights, adapters and KV cache are bfloat16.
    wide = 4.0 if plan.engine == "float32" else 2.0
    lora = plan.method == "lora"
    engine = {
        "weights": shape.weights(plan.engine),
        "adapters": plan.slots * shape.adapter(plan.rank) * wide if lora else 0.0,
        "overhead": plan.engine_overhead,
    }
    # What is trained is float32, and so are its gradients and AdamW's two moments.
    trained = shape.adapter(plan.rank) if lora else shape.parameters
    trainer = {
        "base": shape.weights(plan.trainer) if lora else 0.0,
        "trained weights": 4.0 * trained,
        "gradients": 4.0 * trained,
        "optimizer": 8.0 * trained,
        "activations": estimate_activations(shape, plan),
        "overhead": plan.trainer_overhead,
    }
    return Estimate(engine, trainer, 2 * shape.layers * shape.kv_width * wide)


def estimate_activations(shape: Shape, plan: Plan) -> float:
    """Estimate the bytes that one micro-batch holds at its peak, beside the gradients of what is trained.

    Without recomputation that is what all layers keep; with it each layer's input and what one layer keeps. On top
    comes the backward pass of a layer or that of the head, which is over before the first layer's begins.
    """
    base = "float32" if plan.method == "full" else plan.trainer
    tokens = plan.micro_tokens
    kept, passing = float(tokens * shape.kept[base]), float(tokens * shape.passing[base])
    head = float(min(tokens, HEAD_POSITIONS) * shape.vocab * HEAD_BYTES)
    if not plan.checkpointing:
        return shape.layers * kept + max(passing, head)
    inputs = tokens * shape.layers * shape.hidden * (4.0 if base == "float32" else 2.0)
    return inputs + max(kept + passing, head)


QWEN3: dict[str, Shape] = {
    "Qwen3-0.6B": Shape.decoder(layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8, tied=True),
    "Qwen3-1.7B": Shape.decoder(layers=28, hidden=2048, intermediate=6144, heads=16, kv_heads=8, tied=True),
    "Qwen3-4B": Shape.decoder(layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, tied=True),
    "Qwen3-8B": Shape.decoder(layers=36, hidden=4096, intermediate=12288, heads=32, kv_heads=8),
    "Qwen3-14B": Shape.decoder(layers=40, hidden=5120, intermediate=17408, heads=40, kv_heads=8),
    "Qwen3-32B": Shape.decoder(layers=64, hidden=5120, intermediate=25600, heads=64, kv_heads=8),
}

PLANS: dict[str, Plan] = {
    "LoRA, bf16": Plan(),
    "LoRA, 4-bit base": Plan(engine="4bit", trainer="4bit"),
    "full": Plan(method="full", slots=0),
}


def make_parts_table() -> str:
    """Make the Markdown table of what each part takes, in GiB."""
    head = ["model", "parameters", "bf16 weights", "4-bit weights", "KV cache, 1k tokens", "adapter (rank 16)"]
    head += ["adapter, gradients, optimizer", "all weights, gradients, optimizer", "activations, 4k tokens"]
    rows = []
    for name, shape in QWEN3.items():
        plan = Plan()
        figures = [
            shape.weights("bfloat16"),
            shape.weights("4bit"),
            1024 * estimate(shape, plan).cached_token,
            2.0 * shape.adapter(16),
            16.0 * shape.adapter(16),
            16.0 * shape.parameters,
            estimate_activations(shape, plan),
        ]
        rows.append([name, f"{shape.parameters / 1e9:.2f} B", *(f"{figure / GIB:.2f}" for figure in figures)])
    return _markdown(head, rows)


def make_cards_table(name: str) -> str:
    """Make the Markdown table of the KV cache, in thousands of tokens, that is left beside engine and trainer.

    Args:
        name: One of `PLANS`.
    """
    head = ["model", "engine + trainer, GiB", *(f"{card} GB" for card in CARDS)]
    rows = []
    for model, shape in QWEN3.items():
        need = estimate(shape, PLANS[name])
        cells = [need.cache_in(card * GIB * USABLE) for card in CARDS]
        rows.append([model, f"{need.total / GIB:.1f}", *(_format_tokens(count) for count in cells)])
    return _markdown(head, rows)


def make_apart_table() -> str:
    """Make the Markdown table of engine (with `LEAST_CACHE`) and trainer on devices of their own, in GiB."""
    head = ["model", "engine, bf16", "trainer, LoRA bf16", "trainer, LoRA 4-bit", "trainer, full"]
    rows = []
    for model, shape in QWEN3.items():
        lora, small, full = (estimate(shape, plan) for plan in PLANS.values())
        engine = sum(lora.engine.values()) + LEAST_CACHE * lora.cached_token
        trainers = [sum(need.trainer.values()) for need in (lora, small, full)]
        rows.append([model, *(f"{figure / GIB:.1f}" for figure in (engine, *trainers))])
    return _markdown(head, rows)


def _format_tokens(count: int) -> str:
    return f"{count // 1000}k" if count >= LEAST_CACHE else "-"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def make_tables() -> dict[str, str]:
    """Make every table of the documentation, by its heading."""
    cards = {f"One card, engine and trainer on it: {name}": make_cards_table(name) for name in PLANS}
    return {
        "What each part takes, GiB": make_parts_table(),
        **cards,
        "Engine and trainer apart, GiB": make_apart_table(),
    }


def plan_for_cpu(plan: Plan, *, dtype: str = "float32") -> Plan:
    """Adapt a plan to a processor: one type throughout, no contexts."""
    return replace(plan, engine=dtype, trainer="float32", engine_overhead=0.5 * GIB, trainer_overhead=0.75 * GIB)


if __name__ == "__main__":
    for title, table in make_tables().items():
        print(f"{title}\n\n{table}\n")
