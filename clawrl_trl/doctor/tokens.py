"""Checks that token ids arrive, all of them, in every form of reply.

A turn whose ids are missing or do not fit its log-probs can't be trained on, and some servers lose ids only when a
reply is streamed, or only when it calls a tool. So the same greedy request is made plain and streamed, with and
without tools, and the ids must be the same, as many as counted, and decode to the text that was sent.
"""

import json
from typing import TYPE_CHECKING

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineError
from clawrl_trl.gateway.capture import Choice
from clawrl_trl.messages import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION = "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now? Show the steps."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
TEXT: Json = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0.0,
    "max_tokens": 96,
    "chat_template_kwargs": {"enable_thinking": False},
}
TOOLS: Json = {
    "messages": [{"role": "user", "content": f"Use the calculator tool. {QUESTION}"}],
    "tools": [CALCULATOR],
    "temperature": 0.0,
    "max_tokens": 256,
    "chat_template_kwargs": {"enable_thinking": False},
}
ATTEMPTS = 3
CUT_OFF = "\ufffd"
"""Decoded in place of a character whose last token is missing."""
LOSES_IDS = "use vLLM 0.31 or newer, which answers return_token_ids; turns without ids are kept but never trained"


async def check_text_ids(target: Target) -> Finding:
    """Token ids of a plain text reply, streamed and whole."""
    return await _compare_forms(target, "token ids", TEXT)


async def check_tool_call_ids(target: Target) -> Finding:
    """Token ids of a reply that calls a tool, streamed and whole."""
    name = "token ids, tool call"
    try:
        plain = await target.request_reply(TOOLS)
    except EngineError as error:
        if error.status != 400 or "tool" not in error.message.lower():
            raise
        fix = "start vLLM with --enable-auto-tool-choice --tool-call-parser for the model's family"
        return Finding(name, "fail", f"a request with tools is refused: {error.message[:160]}", fix)
    finding = await _compare_forms(target, name, TOOLS)
    if finding.status == "ok" and not plain.tool_calls:
        raise Skip("the model answered in words instead of calling the tool it was offered")
    return finding


async def check_decoded_text(target: Target) -> Finding:
    """Return whether the ids decode to the text that was sent with them."""
    name = "text of the ids"
    plain = await target.request_reply(TEXT)
    if plain.obstacle():
        raise Skip("the ids did not arrive")
    text = target.tokenizer.decode(plain.token_ids, skip_special_tokens=True).rstrip(CUT_OFF).strip()
    reasoning, content = ("".join(part).rstrip(CUT_OFF).strip() for part in (plain.reasoning, plain.content))
    if text != content and not (reasoning and reasoning in text and content in text):
        fix = "serve the very model and tokenizer that are trained"
        return Finding(name, "fail", f"{len(plain.token_ids)} ids decode to another text than was sent", fix)
    tool_reply = await target.request_reply(TOOLS)
    if not tool_reply.obstacle() and (part := _find_missing_part(target.tokenizer, tool_reply)):
        return Finding(name, "fail", f"the tool call's {part} is not in the decoded ids", "choose another tool parser")
    return Finding(name, "ok", f"{len(plain.token_ids)} ids decode to the {len(content)} characters that were sent")


def _find_missing_part(tokenizer: "PreTrainedTokenizerBase", choice: Choice) -> str | None:
    text = tokenizer.decode(choice.token_ids)
    for call in choice.tool_calls.values():
        if call["function"]["name"] not in text:
            return "name"
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return "argument string"
        values = arguments.values() if isinstance(arguments, dict) else ()
        # Other characters may be written in more ways than one, escaped or not.
        words = [value for value in values if isinstance(value, str) and value.isascii()]
        if not all(word in text or json.dumps(word)[1:-1] in text for word in words):
            return "argument"
    return None


async def _compare_forms(target: Target, name: str, body: Json) -> Finding:
    # Greedy replies may differ by the rounding of another batch, which says nothing about the ids: try again.
    for attempt in range(ATTEMPTS):
        request = {**body, "seed": attempt}
        plain, streamed = [await target.request_reply(request, stream=stream) for stream in (False, True)]
        for reply, form in ((plain, "whole"), (streamed, "streamed")):
            if obstacle := reply.obstacle():
                return Finding(name, "fail", f"{form}: {obstacle}", LOSES_IDS)
        if plain.prompt_ids != streamed.prompt_ids:
            return Finding(name, "fail", "the prompt's ids differ when the reply is streamed", LOSES_IDS)
        if plain.token_ids == streamed.token_ids:
            count = len(plain.token_ids)
            return Finding(name, "ok", f"{count} tokens, the same streamed and whole, each with its log-prob")
        if _texts(plain) == _texts(streamed):
            return Finding(name, "fail", "the same reply came with other ids when it was streamed", LOSES_IDS)
    detail = f"greedy replies differ from one request to the next ({ATTEMPTS} tries), so they can't be compared"
    return Finding(name, "warn", detail, "ask again when the engine is idle; batches change the last digits")


def _texts(choice: Choice) -> tuple[str, ...]:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in choice.tool_calls.values()]
    return ("".join(choice.content), "".join(choice.reasoning), *calls)
