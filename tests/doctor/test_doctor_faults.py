"""Each thing that can be wrong with an engine is broken on purpose, and found."""

from collections.abc import Callable
from typing import Any

import pytest
from doctor_rig import Fault, Json, run_one_check, serve_broken_engine

from clawrl_trl.doctor import adapters, logprobs, sampling, template, tokens
from clawrl_trl.doctor.command import ENGINE_CHECKS, Check
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.policy_names import BASE_MODEL

pytestmark = pytest.mark.xdist_group("doctor")

CHECKS = {check.name: check for check in ENGINE_CHECKS}


def _change_choices(
    change: Callable[[Json], None], when: Callable[[Json], Any] = bool
) -> Callable[[str, Json, Json], Json]:
    """A fault that changes every choice of the requests for which `when` holds."""

    def answer(path: str, body: Json, reply: Json) -> Json:
        if when(body):
            for choice in reply.get("choices") or ():
                change(choice)
        return reply

    return answer


def _drop_ids(choice: Json) -> None:
    choice.pop("token_ids", None)


def _replace_ids(choice: Json) -> None:
    if choice.get("token_ids"):
        choice["token_ids"] = [token + 1 for token in choice["token_ids"]]


def _rows(choice: Json) -> list[Json]:
    rows: list[Json] = (choice.get("logprobs") or {}).get("content") or []
    return rows


def _shift_logprobs(choice: Json) -> None:
    values = [row["logprob"] for row in _rows(choice)]
    for row, value in zip(_rows(choice), [*values[1:], *values[:1]], strict=True):
        row["logprob"] = value


def _add_noise(choice: Json) -> None:
    for place, row in enumerate(_rows(choice)):
        row["logprob"] -= 0.05 * (place % 2)


def _shifted_prompt(path: str, body: Json, reply: Json) -> Json:
    """Every prompt token gets the entry of the one before it, under its own id."""
    for choice in reply.get("choices") or ():
        entries = choice.get("prompt_logprobs")
        if entries:
            values = [next(iter(entry.values()))["logprob"] if entry else None for entry in entries]
            for place in range(2, len(entries)):
                for entry in entries[place].values():
                    entry["logprob"] = values[place - 1]
    return reply


def _with_defaults(path: str, body: Json) -> Json:
    return {"top_k": 3, "temperature": 0.6} | body


def _one_temperature(path: str, body: Json) -> Json:
    return body | ({"temperature": 1.0} if "temperature" in body else {})


def _all_base(path: str, body: Json) -> Json:
    adapter = str(body.get("model", "")).startswith("doctor-")
    return body | ({"model": BASE_MODEL} if adapter else {})


def _cut(path: str, body: Json) -> Json:
    prompt = body.get("prompt")
    return body | ({"prompt": prompt[:1000]} if isinstance(prompt, list) and len(prompt) > 1000 else {})


STREAMED, TOOLS = (lambda body: body.get("stream")), (lambda body: body.get("stream") and body.get("tools"))

FAULTS: dict[str, tuple[str, Fault, str, str]] = {
    "ids lost in streams": ("token ids", Fault(answer=_change_choices(_drop_ids, STREAMED)), "fail", "no token ids"),
    "other ids in streams": ("token ids", Fault(answer=_change_choices(_replace_ids, STREAMED)), "fail", "other ids"),
    "ids lost with tools": (
        "token ids, tool call",
        Fault(answer=_change_choices(_drop_ids, TOOLS)),
        "fail",
        "no token ids",
    ),
    "ids of another tokenizer": (
        "text of the ids",
        Fault(answer=_change_choices(_replace_ids)),
        "fail",
        "another text",
    ),
    "log-probs of the next token": (
        "log-probs at T=1",
        Fault(answer=_change_choices(_shift_logprobs)),
        "fail",
        "the next token",
    ),
    "log-probs a little off": ("log-probs at T=1", Fault(answer=_change_choices(_add_noise)), "warn", "mean gap"),
    "prompt log-probs shifted": ("prompt log-probs", Fault(answer=_shifted_prompt), "fail", "the previous token"),
    "raw log-probs": ("log-prob mode", Fault(ask=_one_temperature), "warn", "temperature 1"),
    "bent defaults": ("sampling defaults", Fault(ask=_with_defaults), "warn", "not sampled plainly"),
    "no adapters": ("adapters", Fault(refuse=("/v1/load_lora_adapter",)), "fail", "can't be served"),
    "adapters ignored": ("adapters", Fault(ask=_all_base), "fail", "the base model all the same"),
    "long prompts cut": ("context length", Fault(ask=_cut), "fail", "answered 200"),
    "no tokenizer route": ("prefix, as served", Fault(refuse=("/tokenize",)), "fail", "404"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_found(engine: str, reference: Reference, fault: str) -> None:
    name, how, status, says = FAULTS[fault]
    with serve_broken_engine(engine, how) as url:
        findings = await run_one_check(CHECKS[name], url, reference)
    assert (findings[0].name, findings[0].status) == (name, status), findings
    assert says in findings[0].detail
    assert findings[0].fix or status == "ok"


@pytest.mark.slow
async def test_an_adapter_that_outlives_its_unloading_is_found(engine: str, reference: Reference) -> None:
    forgetful = Fault(refuse=("/v1/unload_lora_adapter",))
    with serve_broken_engine(engine, forgetful) as url:
        swapped, unloaded = await run_one_check(CHECKS["adapters"], url, reference)
    assert swapped.status == "ok" and unloaded.status == "fail"
    assert "still answered" in unloaded.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        sampling.check_context_length,
        tokens.check_text_ids,
        tokens.check_tool_call_ids,
        tokens.check_decoded_text,
        sampling.check_defaults,
        logprobs.check_mode,
        logprobs.check_at_temperature_1,
        logprobs.check_at_temperature_half,
        logprobs.check_prompt_logprobs,
        adapters.check_adapters,
        template.check_as_served,
    ],
)
async def test_a_sound_engine_passes(engine: str, reference: Reference, check: Any) -> None:
    findings = await run_one_check(Check("Engine", "it", check), engine, reference, max_model_len=1024)
    assert {finding.status for finding in findings} == {"ok"}, findings


async def test_temperature_is_told_from_precision(engine: str, reference: Reference) -> None:
    """Raw log-probs of a cool sample are not taken for a mismatch of the engines."""
    with serve_broken_engine(engine, Fault(ask=_one_temperature)) as url:
        (finding,) = await run_one_check(CHECKS["log-probs at T=0.5"], url, reference)
    assert finding.status == "skipped" and "temperature 1" in finding.detail


async def test_a_context_shorter_than_the_settings_is_warned_of(engine: str) -> None:
    (finding,) = await run_one_check(CHECKS["context length"], engine, max_model_len=4096)
    assert finding.status == "warn" and "--max_model_len 1024" in str(finding.fix)


async def test_the_llm_judge_is_measured_on_the_engine(engine: str) -> None:
    """The bundled model is no judge, and the doctor says so."""
    settings = {"judge": "llm", "judge_votes": 1, "judge_max_tokens": 16}
    (finding,) = await run_one_check(CHECKS["llm judge"], engine, **settings)
    assert finding.status in ("warn", "fail") and "votes valid" in finding.detail
