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

from clawrl_trl.doctor.shape import Shape

GIB = 2**30
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
class Plan:
    """A plan of serving and training a model.

    Args:
        method: `"lora"` or `"full"`.
        engine: Type of the engine's weights and KV cache: `float32`, `bfloat16` or `4bit` (cache in bfloat16).
        trainer: Type of the trainer's frozen base with `"lora"`; with `"full"` all is float32.
        rank: Rank of the adapter.
        slots: Adapters the engine has room for at once.
        micro_tokens: Tokens of one forward and backward pass.
        reference: Whether a reference model lies beside all weights that are trained, as with `--beta` above 0.
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
    reference: bool = False
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
        "reference": 4.0 * shape.parameters if plan.reference else 0.0,
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
