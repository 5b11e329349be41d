"""Families of models, each from a chat to a trained version and a second start.

Random weights of the family at two layers and the family's own chat template go through the parts of a run: capture,
judge, teacher, training, publishing, resume. The stored tokens are held against the template and a plain pass.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from family_models import FAMILY_MODELS, FamilyModel
from family_run import ARGUMENTS, REASONING, TOOLS, FamilyRun, start_family
from safetensors.torch import load_file
from sqlalchemy import select

from clawrl_trl.ledger import policies, turns
from clawrl_trl.ledger.schema import Sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION = {"role": "user", "content": "Tom has 5 apples and buys 7 more. How many has he?"}
OBJECTION = {"role": "user", "content": "Please write it without bold, in plain sentences, but keep the steps."}
THANKS = {"role": "user", "content": "Thanks, that is just right!"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "calculator", "arguments": ARGUMENTS}}


def converse(run: FamilyRun, family: FamilyModel, http: httpx.Client, session: str) -> None:
    """A question, an objection to the answer and thanks; with a call of a tool where the family has one."""
    messages: list[dict[str, Any]] = [QUESTION]
    tools = TOOLS if family.calls else None
    options = {"tools": tools} if tools else {}
    reply: dict[str, Any] = {"role": "assistant", "content": "" if tools else "Twelve."}
    reply |= {"tool_calls": [CALL]} if tools else {}
    reply |= {"reasoning": REASONING} if family.reasons else {}
    first = run.chat(http, session, messages, text=run.write_reply(QUESTION, reply, tools), **options)
    if family.calls:
        (call,) = first["tool_calls"]
        assert call["function"]["name"] == "calculator" and call["function"]["arguments"].replace(" ", "") in (
            '{"expression":"5+7"}'
        )
        messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": "12"}]
    else:
        assert first["content"].strip() == "Twelve."
        messages += [first, {"role": "user", "content": "And why?"}]
    assert (first.get("reasoning") or "").strip() == (REASONING if family.reasons else "")
    for answer, following in (("**Twelve**, of **12**.", OBJECTION), ("He has 12 apples.", THANKS)):
        reply = run.write_reply(QUESTION, {"role": "assistant", "content": answer}, tools)
        messages += [run.chat(http, session, messages, text=reply, **options), following]
    run.chat(http, session, messages, **options)


@pytest.mark.parametrize("family", [family for family in FAMILY_MODELS if family.is_embedded], ids=str)
def test_a_family_goes_from_a_chat_to_a_second_start(family: FamilyModel, tmp_path: Path) -> None:
    model = family.save(tmp_path / "model")
    with start_family(model, tmp_path / "run") as run, run.rig.client() as http:
        converse(run, family, http, "first")
        run.judge()
        first = run.train()
        assert first.policy_version == 1 and first.state.global_step == 1
        converse(run, family, http, "second")
        run.judge()
        second = run.train()
        assert second.policy_version == 2 and second.state.global_step == 2

        captured = run.rig.turns()
        assert [turn.policy_version for turn in captured] == [0] * 4 + [1] * 4
        for turn in captured:
            check_tokens(run, turn)
        check_reasoning(run, family)
        check_samples(run)
    check_adapters(tmp_path / "run" / "policies", family)


def check_tokens(run: FamilyRun, turn: Any) -> None:
    """The prompt is the template's text of the stored messages, the log-probs are those of the stored tokens."""
    assert turn.trainable
    text = run.render(turn.messages, turn.tools, add_generation_prompt=True)
    assert run.tokenizer.encode(text, add_special_tokens=False) == turn.prompt_ids.tolist()
    torch.testing.assert_close(torch.tensor(turn.logprobs), run.recompute(turn), atol=2e-3, rtol=0)


def check_reasoning(run: FamilyRun, family: FamilyModel) -> None:
    """What was thought stands in the reply it belongs to, and in no prompt after the tool's answer."""
    first, _, third, _ = run.rig.turns()[:4]
    spoken = run.tokenizer.decode(first.completion_ids)
    assert (REASONING in spoken) is family.reasons
    assert REASONING not in run.tokenizer.decode(third.prompt_ids)


def check_samples(run: FamilyRun) -> None:
    """Objections were taught, thanks were scored, and everything that could be was trained."""
    with run.rig.ledger.reader() as tx:
        rows = list(tx.scalars(select(Sample)))
        versions = policies.all(tx)
        verdicts = {row.turn_id: turns.verdict_of(tx, row.turn_id) for row in rows}
    assert {row.state for row in rows} == {"trained"}
    assert {row.score for row in rows} >= {1.0, -1.0}
    taught = [row for row in rows if row.teacher_logprobs is not None]
    assert len(taught) == 2
    for row in taught:
        (turn,) = (turn for turn in run.rig.turns() if turn.id == row.turn_id)
        verdict = verdicts[row.turn_id]
        assert verdict is not None and verdict.hint is not None
        expected = run.recompute_teacher(turn, verdict.hint, verdict.hint_source)
        torch.testing.assert_close(torch.tensor(row.teacher_logprobs), expected, atol=2e-3, rtol=0)
    assert [version.state for version in versions] == ["retired", "retired", "serving"]


def check_adapters(folder: Path, family: FamilyModel) -> None:
    """The adapter changes the family's layers, all of them, and goes on from where it was."""
    before, after = (load_file(folder / f"policy-v{number}" / "adapter_model.safetensors") for number in (1, 2))
    assert before.keys() == after.keys()
    ups = {name for name in after if "lora_B" in name}
    assert {name.split(".")[-3] for name in ups} == set(family.targets)
    assert all(after[name].any() and not torch.equal(before[name], after[name]) for name in ups)
