"""Prompts that an engine's batch reads and then decodes, without its scheduler."""

from clawrl_trl.engines.embedded.batch import DecodeBatch, Prefill
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.protocol import SamplingBody


def start_decoding(
    engine: Engine, lengths: list[int], chunk: int, *, max_tokens: int = 30, prompt_logprobs: int | None = None
) -> tuple[list[Generation], DecodeBatch, list[Update]]:
    """Read made-up prompts of these lengths in chunks; each has other tokens and draws its own."""
    generations = [
        engine.make_generation(
            engine.policies.base,
            [(11 * place + 7 * length) % 300 for place in range(length)],
            SamplingBody(seed=length, ignore_eos=True),
            max_tokens=max_tokens,
            top_logprobs=None,
            deliver=lambda update: None,
            chat=False,
        )
        for length in lengths
    ]
    for generation in generations:
        generation.prompt_logprobs = prompt_logprobs
    prefill = Prefill(generations, chunk)
    while (started := prefill.step()) is None:
        pass
    assert started.batch is not None
    return generations, started.batch, started.updates
