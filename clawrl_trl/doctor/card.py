"""Plan of a run on a card: who takes what memory, and when, by arithmetic, before anything is started.

vLLM takes its share of the card when it starts, and holds weights, adapters and as much KV cache as is left of it. The
embedded engine's cache grows on demand, in what the trainer leaves. The trainer takes what each pass needs beside its
weights, and gives it back. So two questions decide: does the cache hold a conversation, and how long a sample does the
rest of the card let the trainer pass.
"""

from collections.abc import Callable, Iterator
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
FOUR_BITS = '--load_in_4bit true --vllm_args "--quantization bitsandbytes"'
LARGER = "a smaller model, or a larger card; see docs/engines.md"


@dataclass(frozen=True)
class CardPlan:
    """A run's plan on one card, or on one for the engine and one for the trainer.

    Args:
        shape: The model.
        plan: How it is served and trained; its `micro_tokens` are the most that a pass is to have.
        card: Bytes of a card.
        share: The engine's share of its card, in (0, 1]; none is taken where the cache grows.
        context: Tokens of the longest conversation that is served.
        least_cache: Tokens of cache without which the engine does not start: a context that was asked for, which vLLM
            refuses to cut short.
        apart: Whether engine and trainer have cards of their own.
        split: Cards that the engine's weights are divided among (`--vllm_tensor_parallel_size`).
        grows: Whether the engine's cache grows on demand, as the embedded engine's does.
        guessed: Whose memory this arithmetic does not know, of `"engine"` and `"trainer"`; it warns of them at most.
    """

    shape: Shape
    plan: Plan
    card: float
    share: float
    context: int
    least_cache: int = LEAST_PASS
    apart: bool = False
    split: int = 1
    grows: bool = False
    guessed: frozenset[str] = frozenset()

    @cached_property
    def need(self) -> Estimate:
        """What the parts take."""
        return estimate(self.shape, self.plan)

    @property
    def engine_fixed(self) -> float:
        """Bytes of a card that the engine takes beside its cache."""
        parts = self.need.engine
        return (parts["weights"] + parts["adapters"]) / self.split + parts["overhead"]

    @cached_property
    def cache_tokens(self) -> int:
        """Tokens that the engine's cache holds; negative where there is no room for its weights."""
        token = self.need.cached_token / self.split
        if not self.grows:
            return int((self.share * self.card - self.engine_fixed) / token)
        room = USABLE * self.card - self.engine_fixed
        left = room - (0.0 if self.apart else self.measure_trainer(self.plan.micro_tokens))
        return min(self.context, max(LEAST_PASS, int(left / token)), int(room / token))

    @property
    def engine_room(self) -> float:
        """Bytes of a card that the engine takes in the end."""
        if not self.grows:
            return self.share * self.card
        return self.engine_fixed + max(0, self.cache_tokens) * self.need.cached_token / self.split

    @property
    def trainer_room(self) -> float:
        """Bytes of a card that are there for the trainer."""
        return USABLE * self.card - (0.0 if self.apart else self.engine_room)

    def measure_trainer(self, tokens: int) -> float:
        """Bytes that the trainer takes in a pass of so many tokens."""
        return sum(estimate(self.shape, replace(self.plan, micro_tokens=tokens)).trainer.values())

    @cached_property
    def longest_pass(self) -> int:
        """Most tokens of a pass that the trainer has room for, a multiple of 512; 0 where there is none."""
        return _find_most(lambda tokens: self.measure_trainer(tokens) <= self.trainer_room)

    def list_parts(self) -> Iterator[tuple[str, str, str, float]]:
        """Who takes what, when, and how many bytes."""
        parts, trainer = self.need.engine, self.need.trainer
        yield "engine", "weights", "from its start", parts["weights"] / self.split
        yield "engine", f"{self.plan.slots} adapters", "from its start", parts["adapters"] / self.split
        yield "engine", "context, CUDA graphs", "from its start", parts["overhead"]
        cache, when = self.engine_room - self.engine_fixed, "as it fills" if self.grows else "from its start"
        yield "engine", f"KV cache of {max(0, self.cache_tokens):,} tokens", when, max(0.0, cache)
        if trainer["base"]:
            yield "trainer", "frozen base", "from its start", trainer["base"]
        if trainer["reference"]:
            yield "trainer", "reference model", "from its start", trainer["reference"]
        yield "trainer", "trained weights", "from its start", trainer["trained weights"]
        yield "trainer", "AdamW's moments", "from its first step", trainer["optimizer"]
        yield "trainer", "gradients", "in a step", trainer["gradients"]
        tokens = self.plan.micro_tokens
        yield "trainer", f"a pass of {tokens:,} tokens", "in a step, given back after it", trainer["activations"]
        yield "trainer", "context, workspace", "from its start", trainer["overhead"]

    def judge(self) -> list[Finding]:
        """Judge the engine's part and the trainer's."""
        findings = {"engine": self._judge_engine(), "trainer": self._judge_trainer()}
        return [_doubt(finding) if who in self.guessed else finding for who, finding in findings.items()]

    def _judge_engine(self) -> Finding:
        name, cache = "engine's memory", self.cache_tokens
        room = f"{self.engine_room / GIB:.1f} GiB"
        share = f"{room}, which grow with its cache" if self.grows else f"{self.share:.0%} of the card, {room}"
        if cache >= self.context:
            return Finding(name, "ok", f"{share}: a cache of {cache:,} tokens beside the weights")
        needs = f"{self.engine_fixed / GIB:.1f} GiB before its cache"
        left = "what the trainer leaves" if self.grows and not self.apart else "the cache"
        detail = f"{share}: it takes {needs}, and {left} holds {max(0, cache):,} tokens of {self.context:,}"
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
            return Finding(name, "warn", detail, self._advise_passes(longest))
        need = self.measure_trainer(LEAST_PASS) / GIB
        detail = f"{room} are left for it, {need:.1f} GiB is the least"
        return Finding(name, "fail", detail, self._advise_apart() if self.apart else self._advise(LEAST_CACHE))

    def _advise(self, cache: int) -> str:
        """The smallest change with which the cache holds so many tokens and a pass of the least length fits."""
        flags = (self._find_length() or self._find_vllm(cache)) if self.grows else self._find_flags(cache)
        if flags or self.apart:
            return flags or LARGER
        return f"a card for each (--engine vllm, --actor_gpus, --rollout_gpus), {LARGER}"

    def _advise_passes(self, longest: int) -> str:
        """What lets shorter samples pass, or, where the engine has the rest of the card, longer ones."""
        if self.grows and not self.apart:
            return self._advise(self.context)
        fix = f"--max_pass_tokens {longest} --max_sample_tokens {longest} (longer samples are dropped as too long)"
        other = self._advise_apart() if self.apart else self._advise(self.context)
        return f"{fix}, or {other}" if self.apart or other.startswith("--") else fix

    def _advise_apart(self) -> str:
        """What helps a trainer on a card of its own, of which the engine has no share to give."""
        small = replace(self, plan=replace(self.plan, trainer="4bit"))
        can_shrink = self.plan.method == "lora" and self.plan.trainer != "4bit" and small.longest_pass >= LEAST_PASS
        bits = f"{FOUR_BITS} (4 bits on both sides), " if can_shrink else ""
        return f"{bits}more processes with FSDP2 (docs/training.md), or a larger card"

    def _find_length(self) -> str:
        """The longest context, and so sample, with which a growing cache and a pass fit; empty if there is none."""
        token = self.need.cached_token

        def fits(tokens: int) -> bool:
            engine, trainer = self.engine_fixed + tokens * token, self.measure_trainer(tokens)
            return (max(engine, trainer) if self.apart else engine + trainer) <= USABLE * self.card

        length = min(_find_most(fits), self.context)
        return f"--max_model_len {length} --max_pass_tokens {length}" if length >= LEAST_PASS else ""

    def _find_vllm(self, cache: int) -> str:
        """vLLM's flags in the place of an engine whose weights are too wide; empty if there are none."""
        served = replace(self, grows=False, plan=replace(self.plan, engine="bfloat16"))
        flags = served._find_flags(min(cache, LEAST_CACHE))
        return f"--engine vllm {flags}" if flags else ""

    def _find_flags(self, cache: int) -> str:
        """The share, or 4 bits and a share, that `_find_share` finds; empty if there is none."""
        if flags := self._find_share(cache):
            return flags
        if self.plan.method != "lora" or self.plan.engine == self.plan.trainer == "4bit":
            return ""
        quantised = replace(self, plan=replace(self.plan, engine="4bit", trainer="4bit"))
        flags = quantised._find_share(cache)
        return f"{FOUR_BITS} {flags}" if flags else ""

    def _find_share(self, cache: int) -> str:
        """The share that gives the engine so much cache and leaves the trainer its least; empty if there is none."""
        engine = self.engine_fixed + cache * self.need.cached_token / self.split
        trainer = 0.0 if self.apart else self.measure_trainer(LEAST_PASS)
        share = -(-engine / self.card * 100 // 1) / 100
        return (
            f"--vllm_gpu_memory_utilization {share:.2f}" if share * self.card + trainer <= USABLE * self.card else ""
        )


def _find_most(fits: Callable[[int], bool]) -> int:
    """The most tokens, a multiple of 512, that fit; 0 where none do."""
    low, high = 0, MOST_PASS // STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle - 1)
    return low * STEP


def _doubt(finding: Finding) -> Finding:
    """A finding that nothing is refused for, since the run's own settings change the figures."""
    if finding.status == "ok":
        return finding
    reason = "by arithmetic that knows neither --vllm_args nor a model's own quantization"
    return Finding(finding.name, "warn", f"{finding.detail} ({reason})")
