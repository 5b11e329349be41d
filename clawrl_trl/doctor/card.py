"""Plan of a run on a card: who takes what memory, and when, by arithmetic, before anything is started.

The engine takes its share of the card when it starts, and holds weights, adapters and as much KV cache as is left of
it. The trainer takes what each pass needs beside its weights, and gives it back. So two questions decide: does the
cache hold a conversation, and how long a sample does the rest of the card let the trainer pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.memory import GIB, LEAST_CACHE, USABLE, Estimate, Plan, estimate
from clawrl_trl.doctor.shape import Shape

LEAST_PASS = 2048
"""Tokens of a pass below which a run on a card is refused: hardly a chat with a system prompt is shorter."""
STEP = 512
"""Tokens by which the longest pass is looked for."""
MOST_PASS = 131_072
"""No pass above it is looked for."""


@dataclass(frozen=True)
class CardPlan:
    """A run's plan on one card, or on one for the engine and one for the trainer.

    Args:
        shape: The model.
        plan: How it is served and trained; its `micro_tokens` are the most that a pass is to have.
        card: Bytes of a card.
        share: The engine's share of its card, in (0, 1].
        context: Tokens of the longest conversation that is served.
        least_cache: Tokens of cache without which the engine does not start: a context that was asked for, which vLLM
            refuses to cut short.
        apart: Whether engine and trainer have cards of their own.
        split: Cards that the engine's weights are divided among (`--vllm_tensor_parallel_size`).
    """

    shape: Shape
    plan: Plan
    card: float
    share: float
    context: int
    least_cache: int = LEAST_PASS
    apart: bool = False
    split: int = 1

    @cached_property
    def need(self) -> Estimate:
        """What the parts take."""
        return estimate(self.shape, self.plan)

    @property
    def engine_fixed(self) -> float:
        """Bytes of a card that the engine takes beside its cache."""
        parts = self.need.engine
        return (parts["weights"] + parts["adapters"]) / self.split + parts["overhead"]

    @property
    def cache_tokens(self) -> int:
        """Tokens that the engine's cache holds; negative where its share doesn't hold its weights."""
        return int((self.share * self.card - self.engine_fixed) / (self.need.cached_token / self.split))

    @property
    def trainer_room(self) -> float:
        """Bytes of a card that are there for the trainer."""
        return USABLE * self.card - (0.0 if self.apart else self.share * self.card)

    def measure_trainer(self, tokens: int) -> float:
        """Bytes that the trainer takes in a pass of so many tokens."""
        return sum(estimate(self.shape, replace(self.plan, micro_tokens=tokens)).trainer.values())

    @cached_property
    def longest_pass(self) -> int:
        """Most tokens of a pass that the trainer has room for, a multiple of 512; 0 where there is none."""
        low, high = 0, MOST_PASS // STEP
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.measure_trainer(middle * STEP) <= self.trainer_room
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * STEP

    def list_parts(self) -> Iterator[tuple[str, str, str, float]]:
        """Who takes what, when, and how many bytes."""
        parts, trainer = self.need.engine, self.need.trainer
        yield "engine", "weights", "from its start", parts["weights"] / self.split
        yield "engine", f"{self.plan.slots} adapters", "from its start", parts["adapters"] / self.split
        yield "engine", "context, CUDA graphs", "from its start", parts["overhead"]
        cache = self.share * self.card - self.engine_fixed
        yield "engine", f"KV cache of {max(0, self.cache_tokens):,} tokens", "from its start", max(0.0, cache)
        if trainer["base"]:
            yield "trainer", "frozen base", "from its start", trainer["base"]
        yield "trainer", "trained weights", "from its start", trainer["trained weights"]
        yield "trainer", "AdamW's moments", "from its first step", trainer["optimizer"]
        yield "trainer", "gradients", "in a step", trainer["gradients"]
        tokens = self.plan.micro_tokens
        yield "trainer", f"a pass of {tokens:,} tokens", "in a step, given back after it", trainer["activations"]
        yield "trainer", "context, workspace", "from its start", trainer["overhead"]

    def judge(self) -> list[Finding]:
        """Judge the engine's part and the trainer's."""
        return [self._judge_engine(), self._judge_trainer()]

    def _judge_engine(self) -> Finding:
        name, cache = "engine's memory", self.cache_tokens
        share = f"{self.share:.0%} of the card, {self.share * self.card / GIB:.1f} GiB"
        if cache >= self.context:
            return Finding(name, "ok", f"{share}: a cache of {cache:,} tokens beside the weights")
        needs = f"{self.engine_fixed / GIB:.1f} GiB before its cache"
        detail = f"{share}: it takes {needs}, and the cache holds {max(0, cache):,} tokens of {self.context:,}"
        return Finding(name, "fail" if cache < self.least_cache else "warn", detail, self._advise(self.context))

    def _judge_trainer(self) -> Finding:
        name, longest, tokens = "trainer's memory", self.longest_pass, self.plan.micro_tokens
        room = f"{self.trainer_room / GIB:.1f} GiB"
        if longest >= tokens:
            return Finding(name, "ok", f"{room} are left for it: passes of up to {longest:,} tokens fit")
        if longest >= LEAST_PASS:
            detail = (
                f"{room} are left for it: a pass of more than {longest:,} tokens does not fit, {tokens:,} are allowed"
            )
            fix = f"--max_pass_tokens {longest} --max_sample_tokens {longest} (longer samples are dropped as too long)"
            other = self._advise(self.context)
            return Finding(name, "warn", detail, f"{fix}, or {other}" if other.startswith("--") else fix)
        need = self.measure_trainer(LEAST_PASS) / GIB
        detail = f"{room} are left for it, {need:.1f} GiB is the least"
        return Finding(name, "fail", detail, self._advise(LEAST_CACHE))

    def _advise(self, cache: int) -> str:
        """The smallest change with which the cache holds so many tokens and a pass of the least length fits."""
        if flags := self._find_share(cache):
            return flags
        if self.plan.trainer != "4bit" and self.plan.method == "lora":
            quantised = replace(self, plan=replace(self.plan, engine="4bit", trainer="4bit"))
            if flags := quantised._find_share(cache):
                return f'--load_in_4bit true --vllm_args "--quantization bitsandbytes" {flags}'
        return "a card for each (--actor_gpus, --rollout_gpus), a smaller model, or a larger card; see docs/engines.md"

    def _find_share(self, cache: int) -> str:
        """The share that gives the engine so much cache and leaves the trainer its least; empty if there is none."""
        engine = self.engine_fixed + cache * self.need.cached_token / self.split
        trainer = 0.0 if self.apart else self.measure_trainer(LEAST_PASS)
        share = -(-engine / self.card * 100 // 1) / 100
        return (
            f"--vllm_gpu_memory_utilization {share:.2f}" if share * self.card + trainer <= USABLE * self.card else ""
        )
