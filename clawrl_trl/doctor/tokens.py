"""Do the token ids arrive, whole, whatever the form of the reply?

A turn whose ids are missing or do not fit its log-probs can't be trained on, and some servers lose ids only when a
reply is streamed, or only when it calls a tool. So the same greedy request is made plain and streamed, with and
without tools, and the ids must be the same, as many as counted, and decode to the text that was sent.
"""

import json
from typing import Any

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineError
from clawrl_trl.gateway.capture import Choice

QUESTION = "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now? Show the steps."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
TEXT: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0.0,
    "max_tokens": 96,
    "chat_template_kwargs": {"enable_thinking": False},
}
TOOLS: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"Use the calculator tool. {QUESTION}"}],
    "tools": [CALCULATOR],
    "temperature": 0.0,
    "max_tokens": 256,
    "chat_template_kwargs": {"enable_thinking": False},
}
ATTEMPTS = 3
CUT_OFF = "\ufffd"
"""What a character decodes to of which the last token is missing."""
LOSES_IDS = "use vLLM 0.31 or newer, which answers return_token_ids; turns without ids are kept but never trained"


async def text_ids(target: Target) -> Finding:
    """Token ids of a plain text reply, streamed and whole."""
    return await _agree(target, "token ids", TEXT)


async def tool_ids(target: Target) -> Finding:
    """Token ids of a reply that calls a tool, streamed and whole."""
    name = "token ids, tool call"
    try:
        plain = await target.reply(TOOLS)
    except EngineError as error:
        if error.status != 400 or "tool" not in error.message.lower():
            raise
        fix = "start vLLM with --enable-auto-tool-choice --tool-call-parser for the model's family"
        return Finding(name, "fail", f"a request with tools is refused: {error.message[:160]}", fix)
    found = await _agree(target, name, TOOLS)
    if found.status == "ok" and not plain.tool_calls:
        raise Skip("the model answered in words instead of calling the tool it was offered")
    return found


async def decoded_text(target: Target) -> Finding:
    """Return whether the ids decode to the text that was sent with them."""
    name = "text of the ids"
    plain = await target.reply(TEXT)
    if plain.obstacle():
        raise Skip("the ids did not arrive")
    text = target.tokenizer.decode(plain.token_ids, skip_special_tokens=True).rstrip(CUT_OFF).strip()
    thought, said = ("".join(part).rstrip(CUT_OFF).strip() for part in (plain.reasoning, plain.content))
    if text != said and not (thought and thought in text and said in text):
        fix = "serve the very model and tokenizer that are trained"
        return Finding(name, "fail", f"{len(plain.token_ids)} ids decode to another text than was sent", fix)
    called = await target.reply(TOOLS)
    if not called.obstacle() and (lost := _missing(target.tokenizer.decode(called.token_ids), called)):
        return Finding(name, "fail", f"the tool call's {lost} is not in the decoded ids", "choose another tool parser")
    return Finding(name, "ok", f"{len(plain.token_ids)} ids decode to the {len(said)} characters that were sent")


def _missing(text: str, choice: Choice) -> str | None:
    for one in choice.tool_calls.values():
        if one["function"]["name"] not in text:
            return "name"
        try:
            arguments = json.loads(one["function"]["arguments"])
        except ValueError:
            return "argument string"
        values = arguments.values() if isinstance(arguments, dict) else ()
        plain = [one for one in values if isinstance(one, str) and one.isascii()]
        if not all(one in text or json.dumps(one)[1:-1] in text for one in plain):
            return "argument"
    return None


async def _agree(target: Target, name: str, body: dict[str, Any]) -> Finding:
    for attempt in range(ATTEMPTS):
        asked = {**body, "seed": attempt}
        plain, streamed = [await target.reply(asked, stream=stream) for stream in (False, True)]
        for one, form in ((plain, "whole"), (streamed, "streamed")):
            if obstacle := one.obstacle():
                return Finding(name, "fail", f"{form}: {obstacle}", LOSES_IDS)
        if plain.prompt_ids != streamed.prompt_ids:
            return Finding(name, "fail", "the prompt's ids differ when the reply is streamed", LOSES_IDS)
        if plain.token_ids == streamed.token_ids:
            count = len(plain.token_ids)
            return Finding(name, "ok", f"{count} tokens, the same streamed and whole, each with its log-prob")
        if _words(plain) == _words(streamed):
            return Finding(name, "fail", "the same reply came with other ids when it was streamed", LOSES_IDS)
    detail = f"greedy replies differ from one request to the next ({ATTEMPTS} tries), so they can't be compared"
    return Finding(name, "warn", detail, "ask again when the engine is idle; batches change the last digits")


def _words(choice: Choice) -> tuple[str, ...]:
    calls = [f"{one['function']['name']}({one['function']['arguments']})" for one in choice.tool_calls.values()]
    return ("".join(choice.content), "".join(choice.reasoning), *calls)
