"""Check that the engine serves the adapters that training will publish.

Two made-up adapters are loaded beside each other and the base model is asked at the same time: each reply's
log-probs must be those that transformers and PEFT compute with that very adapter. Then they are unloaded, and a
request under their name must be refused, not answered by the base model.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.logprobs import Row, choose_bound, rate_gaps
from clawrl_trl.doctor.replies import request_completion
from clawrl_trl.doctor.target import Target
from clawrl_trl.doctor.tokens import TEXT
from clawrl_trl.engines.client import EngineError
from clawrl_trl.gateway.capture import Choice

SWAP, UNLOAD = "adapters", "adapter unloading"
TOKENS = 32
ALLOW = "start vLLM with --enable-lora --max-lora-rank R --max-loras N and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
SHARE = "let the engine see the run folder under the same path (a shared file system)"


async def check_adapters(target: Target) -> list[Finding]:
    """Load two adapters, request replies under each and the base model at once, compare, unload."""
    if target.settings.vllm_max_lora_rank == 0:
        raise Skip("the engine serves no adapters (--vllm_max_lora_rank 0)")
    reply = await target.request_reply({**TEXT, "temperature": 1.0})
    prompt, completion = reply.prompt_ids, reply.token_ids
    if not prompt or not completion:
        raise Skip("the ids of a reply did not arrive")
    # Neither the engine's own adapters nor those of another doctor may have these names.
    tag = secrets.token_hex(3)
    with tempfile.TemporaryDirectory(prefix="clawrl-doctor-") as temporary:
        names = [f"doctor-{tag}-{number}" for number in (1, 2)]
        make = target.reference.make_adapter
        folders = {name: make(name, Path(temporary), seed, prompt, completion) for seed, name in enumerate(names)}
        try:
            replies = await _ask_all(target, folders, prompt)
        except EngineError as error:
            # An engine on this machine refuses by its flags; elsewhere it most likely can't read our folder.
            fix = ALLOW if target.shares_files else SHARE
            return [Finding(SWAP, "fail", f"an adapter can't be served: {error.message[:200]}", fix)]
        finally:
            # Whatever failed: the engine is left as it was found.
            for name in folders:
                with contextlib.suppress(EngineError):
                    await target.engine.unload_adapter(name)
        return [_compare(target, prompt, replies), await _check_unloaded(target, next(iter(folders)), prompt)]


async def _ask_all(target: Target, folders: Mapping[str, Path], prompt: list[int]) -> dict[str | None, Choice]:
    for name, folder in folders.items():
        await target.engine.load_adapter(name, folder)

    async def ask(name: str | None) -> Choice:
        body = {"model": name or target.base, "prompt": prompt, "max_tokens": TOKENS, "seed": 7}
        return await request_completion(target.engine, body)

    names = [None, *folders]
    # At once: adapters that are mixed up are mixed up within a batch.
    return dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))


def _compare(target: Target, prompt: list[int], replies: Mapping[str | None, Choice]) -> Finding:
    rows: list[Row] = []
    to_base: list[float] = []
    for name, reply in replies.items():
        if obstacle := reply.obstacle():
            return Finding(SWAP, "fail", f"a reply under an adapter can't be trained on: {obstacle}")
        rows.append((reply.logprobs, target.reference.logprobs(prompt, reply.token_ids, adapter=name)))
        if name is not None:
            to_base += _gaps(reply.logprobs, target.reference.logprobs(prompt, reply.token_ids))
    bound = choose_bound(target)
    bound = replace(bound, mean=2 * bound.mean)  # a made-up adapter is rougher than a trained one
    finding = rate_gaps(SWAP, rows, bound, "transformers with PEFT")
    # Near the base model's own log-probs: the engine took the name and sampled without the adapter.
    if finding.status != "ok" and fmean(to_base) <= bound.mean:
        return Finding(SWAP, "fail", "adapters are loaded, and replies come from the base model all the same", ALLOW)
    if finding.status != "ok":
        return finding
    detail = f"2 and the base at once: {finding.detail}; they move a log-prob by {fmean(to_base):.2g}"
    return Finding(SWAP, "ok", detail)


def _gaps(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(first, second, strict=True)]


async def _check_unloaded(target: Target, name: str, prompt: list[int]) -> Finding:
    body = {"model": name, "prompt": prompt, "max_tokens": 1}
    try:
        await request_completion(target.engine, body)
    except EngineError as error:
        if error.status == 404:
            return Finding(UNLOAD, "ok", "a request under an unloaded name is refused with 404")
        return Finding(UNLOAD, "warn", f"a request under an unloaded name is answered {error.status}, not 404")
    detail = "a request under an unloaded adapter's name is still answered"
    return Finding(UNLOAD, "fail", detail, "use an engine that answers 404, or versions could be mistaken silently")
