"""The dialect over HTTP: the same requests, the same meaning, whichever engine the `server` fixture starts.

Where vLLM itself has a fault that is known, the test says what comes back instead, so that its repair is noticed.
"""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from engine_checks import (
    chat_from_chunks,
    chat_from_whole,
    logprobs_of,
    reference_logits,
    reference_model,
    stream,
)
from engine_models import BROKEN, BY_HEART, SHAPELESS, TOOLS, conversation
from engine_server import Server

from clawrl_trl.engines.client import error_of

CHAT = "/v1/chat/completions"
FREE = {
    "model": "base",
    "messages": [{"role": "user", "content": "something new, please"}],
    "chat_template_kwargs": {"enable_thinking": False},
}
MALFORMED = ("broken", "shapeless")
CUT = "\N{REPLACEMENT CHARACTER}"
"""What stands for a character whose bytes are spread over several tokens."""
TOLD = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}


def chat(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


@pytest.mark.parametrize("word", BY_HEART)
def test_a_reply_by_heart_is_the_same_streamed_and_plain(
    server: Server, http: httpx.Client, tokenizer: Any, word: str
) -> None:
    body = {"model": "base", **conversation(word), "temperature": 0, "max_tokens": 120, **TOLD}
    plain = chat_from_whole(chat(http, **body)["choices"][0])
    streamed = chat_from_chunks(stream(http, CHAT, body))
    if server.is_vllm and word in MALFORMED:
        # vLLM announces a call as soon as it begins and never takes it back; the tokens are all there.
        assert streamed["content"] != plain["content"]
        streamed |= {name: plain[name] for name in ("content", "calls", "finish_reason")}
    assert streamed == plain
    assert tokenizer.decode(plain["token_ids"]) == BY_HEART[word][0] + "<|im_end|>"
    texts = [tokenizer.decode([one]) for one in plain["token_ids"]]
    whole = [(one["token"], text) for one, text in zip(plain["logprobs"], texts, strict=True) if CUT not in text]
    assert [said for said, _ in whole] == [text for _, text in whole]


def by_heart(http: httpx.Client, word: str, **more: Any) -> dict[str, Any]:
    body = {"model": "base", **conversation(word), "temperature": 0, "max_tokens": 120, **more}
    return chat_from_whole(chat(http, **body)["choices"][0])


def test_tool_calls_are_parsed_and_leave_no_trace_in_the_content(http: httpx.Client) -> None:
    reply = by_heart(http, "add")
    assert reply["content"] == "Let me see."
    assert reply["calls"][0]["name"] == "calculator"
    assert json.loads(reply["calls"][0]["arguments"]) == {"expression": "2+3"}
    assert reply["finish_reason"] == "tool_calls"


def test_parallel_tool_calls(http: httpx.Client) -> None:
    reply = by_heart(http, "twice")
    assert [json.loads(call["arguments"])["expression"] for call in reply["calls"]] == ["2+3", "4*5"]
    assert reply["content"] == ""


@pytest.mark.parametrize(("word", "text"), [("broken", f"Hm.\n{BROKEN}"), ("shapeless", SHAPELESS)])
def test_a_malformed_call_is_plain_content(http: httpx.Client, word: str, text: str) -> None:
    reply = by_heart(http, word)
    assert (reply["content"], reply["calls"], reply["finish_reason"]) == (text, [], "stop")


def test_a_call_cut_short_is_plain_content(http: httpx.Client) -> None:
    whole = by_heart(http, "add", return_token_ids=True)
    reply = by_heart(http, "add", max_tokens=len(whole["token_ids"]) // 2)
    assert reply["content"].startswith("Let me see.\n<tool_call>")
    assert (reply["calls"], reply["finish_reason"]) == ([], "length")


def test_without_tools_a_call_is_text(http: httpx.Client) -> None:
    body = {**conversation("shapeless"), "temperature": 0, "max_tokens": 60, "tool_choice": "none"}
    assert chat_from_whole(chat(http, **body)["choices"][0])["content"] == SHAPELESS


def test_reasoning_is_kept_apart(http: httpx.Client) -> None:
    reply = by_heart(http, "think")
    assert reply["reasoning"] == "First this, then that."
    assert reply["content"] == "The answer is 5."
    both = by_heart(http, "plan")
    assert both["reasoning"] == "I need a tool."
    assert both["calls"][0]["name"] == "calculator"


def test_streamed_text_arrives_in_pieces(http: httpx.Client) -> None:
    body = {"model": "base", **conversation("lines"), "temperature": 0, "max_tokens": 60, **TOLD}
    parts = stream(http, CHAT, body)
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert parts[0]["prompt_token_ids"] == chat(http, **body)["prompt_token_ids"]
    assert sum(bool(part["choices"][0]["delta"].get("content")) for part in parts) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_a_seeded_sample_is_the_same_streamed_and_plain(
    http: httpx.Client, tokenizer: Any, temperature: float
) -> None:
    for seed in range(8):
        body = FREE | TOLD | {"temperature": temperature, "seed": seed, "max_tokens": 40}
        plain = chat_from_whole(chat(http, **body)["choices"][0])
        streamed = chat_from_chunks(stream(http, CHAT, body))
        for one in (plain, streamed):
            one["values"] = [entry["logprob"] for entry in one.pop("logprobs")]
        assert streamed.pop("values") == pytest.approx(plain.pop("values"), abs=1e-4)
        assert streamed == plain
        sampled = tokenizer.decode(plain["token_ids"], skip_special_tokens=True)
        assert plain["content"].rstrip(CUT) == sampled.rstrip(CUT)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
async def test_logprobs_agree_with_transformers_in_a_changing_batch(
    server: Server, model_folder: Path, adapters: dict[str, Path], temperature: float
) -> None:
    """Rows of many lengths join and leave; every log-probability must be the one of its own policy."""
    names = ["base", *adapters]

    async def ask(number: int, http: httpx.AsyncClient) -> tuple[str, dict[str, Any]]:
        name = names[number % len(names)]
        content = "word " * (number * 7 % 31) + "go"
        body = {**FREE, **TOLD, "model": name, "messages": [{"role": "user", "content": content}]}
        body |= {"temperature": temperature, "max_tokens": 3 + number * 5 % 37, "ignore_eos": True}
        response = await http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        return name, response.json()

    async with server.async_http() as http:
        replies = await asyncio.gather(*(ask(number, http) for number in range(24)))
    models = {name: reference_model(model_folder / "base", adapters.get(name)) for name in names}
    for name, reply in replies:
        choice = reply["choices"][0]
        logits = reference_logits(models[name], reply["prompt_token_ids"], choice["token_ids"])
        expected = logprobs_of(logits / temperature, choice["token_ids"])
        assert [one["logprob"] for one in choice["logprobs"]["content"]] == pytest.approx(expected, abs=1e-3)


def test_logprobs_are_of_the_truncated_and_penalised_distribution(http: httpx.Client, model_folder: Path) -> None:
    body = FREE | TOLD | {"seed": 3, "max_tokens": 30, "temperature": 0.8, "top_k": 7, "repetition_penalty": 1.3}
    body |= {"presence_penalty": 0.4, "frequency_penalty": 0.3, "ignore_eos": True}
    reply = chat(http, **body)
    prompt_ids, ids = reply["prompt_token_ids"], reply["choices"][0]["token_ids"]
    logits = reference_logits(reference_model(model_folder / "base"), prompt_ids, ids)
    for place, row in enumerate(logits):
        seen = torch.tensor(sorted({*prompt_ids, *ids[:place]}))
        row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
        counts = torch.bincount(torch.tensor(ids[:place], dtype=torch.int64), minlength=row.numel())
        row -= 0.3 * counts + 0.4 * (counts > 0)
    logits /= 0.8
    kth = logits.topk(7, -1).values[:, -1:]
    logits[logits < kth] = -math.inf
    got = [one["logprob"] for one in reply["choices"][0]["logprobs"]["content"]]
    assert got == pytest.approx(logprobs_of(logits, ids), abs=1e-3)


def test_greedy_reports_the_distribution_at_temperature_one(http: httpx.Client, model_folder: Path) -> None:
    reply = chat(http, **FREE, **TOLD, temperature=0, max_tokens=20, ignore_eos=True)
    ids = reply["choices"][0]["token_ids"]
    logits = reference_logits(reference_model(model_folder / "base"), reply["prompt_token_ids"], ids)
    assert ids == logits.argmax(-1).tolist()
    got = [one["logprob"] for one in reply["choices"][0]["logprobs"]["content"]]
    assert got == pytest.approx(logprobs_of(logits, ids), abs=1e-3)


async def test_a_seed_gives_the_same_tokens_among_any_neighbours(server: Server, http: httpx.Client) -> None:
    body = FREE | {"return_token_ids": True, "seed": 11, "max_tokens": 40, "ignore_eos": True}
    alone = chat(http, **body)["choices"][0]["token_ids"]
    async with server.async_http() as many:
        noise = [many.post(CHAT, json=FREE | {"max_tokens": 5 + 9 * k, "ignore_eos": True}) for k in range(8)]
        *_, crowded = await asyncio.gather(*noise, many.post(CHAT, json=body))
    assert crowded.json()["choices"][0]["token_ids"] == alone
    other = chat(http, **(body | {"seed": 12}))["choices"][0]["token_ids"]
    assert other != alone


def test_n_choices_differ_and_count(client: openai.OpenAI) -> None:
    more = {"return_token_ids": True, "chat_template_kwargs": FREE["chat_template_kwargs"]}
    reply = client.chat.completions.create(
        model="base", messages=FREE["messages"], n=4, seed=5, max_tokens=12, extra_body=more
    )
    ids = [tuple(choice.token_ids) for choice in reply.choices]  # type: ignore[attr-defined]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert len(set(ids)) > 1
    assert reply.usage is not None
    assert reply.usage.completion_tokens == sum(map(len, ids))


def test_n_streamed_is_n_plain(http: httpx.Client) -> None:
    body = FREE | {"n": 3, "seed": 5, "max_tokens": 12, "return_token_ids": True}
    plain = chat(http, **body)
    parts = stream(http, CHAT, body | {"stream_options": {"include_usage": True}})
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    for index in range(3):
        assert chat_from_chunks(parts, index) == chat_from_whole(plain["choices"][index])


def test_a_stop_string_ends_the_reply_and_never_shows(http: httpx.Client) -> None:
    body = {"model": "base", **conversation("lines"), "temperature": 0, "stop": ["< thr", "zebra"], **TOLD}
    plain = chat_from_whole(chat(http, **body)["choices"][0])
    parts = stream(http, CHAT, body)
    assert plain["content"] == "One.\n\nTwo "
    assert plain["finish_reason"] == "stop"
    assert chat_from_chunks(parts) == plain
    assert "<" not in "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)


def test_stop_token_ids_min_tokens_and_ignore_eos(http: httpx.Client, tokenizer: Any) -> None:
    ids = by_heart(http, "hello", return_token_ids=True)["token_ids"]
    body = {"model": "base", **conversation("hello"), "temperature": 0, "return_token_ids": True, "max_tokens": 50}
    cut = chat(http, **body, stop_token_ids=[ids[1]])["choices"][0]
    assert (cut["token_ids"], cut["stop_reason"]) == (ids[:2], ids[1])
    longer = chat(http, **body, min_tokens=len(ids) + 3)["choices"][0]["token_ids"]
    assert len(longer) >= len(ids) + 3
    assert tokenizer.eos_token_id not in longer[: len(ids) + 2]
    assert len(chat(http, **body, ignore_eos=True)["choices"][0]["token_ids"]) == 50


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_that_repeats_itself_ends_when_asked(http: httpx.Client, tokenizer: Any, streamed: bool) -> None:
    (token,) = tokenizer.encode("a", add_special_tokens=False)[:1]
    body = {"model": "base", "prompt": [5, 6, 7], "logit_bias": {str(token): 100}, "max_tokens": 50, "temperature": 1}
    assert complete(http, streamed, **body)["finish_reason"] == "length"
    guarded = complete(http, streamed, **body, repetition_detection={"max_pattern_size": 4, "min_count": 6})
    assert guarded["finish_reason"] == "repetition" and guarded["token_ids"] == [token] * 6
    longer = {"max_pattern_size": 4, "min_pattern_size": 3, "min_count": 6}
    assert complete(http, streamed, **body, repetition_detection=longer)["token_ids"] == [token] * 18
    wrong = http.post("/v1/completions", json=body | {"repetition_detection": {"max_pattern_size": 4}})
    assert wrong.status_code == 400


def complete(http: httpx.Client, streamed: bool, **body: Any) -> dict[str, Any]:
    """The one choice of a completion with its token ids."""
    body |= {"return_token_ids": True, "stream": streamed}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not streamed:
        return dict(response.json()["choices"][0])
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    return {"token_ids": ids, "finish_reason": next(filter(None, (choice["finish_reason"] for choice in choices)))}


@pytest.mark.parametrize("name", ["base", "policy-v1"])
async def test_prompt_logprobs_agree_with_a_dense_computation(
    server: Server, model_folder: Path, adapters: dict[str, Path], name: str
) -> None:
    prompts = [[(7 * place + row) % 300 for place in range(5 + 17 * row)] for row in range(6)]
    async with server.async_http() as http:
        body = {"model": name, "max_tokens": 1, "prompt_logprobs": 3, "temperature": 0.7}
        calls = [http.post("/v1/completions", json=body | {"prompt": prompt}) for prompt in prompts]
        replies = [response.json() for response in await asyncio.gather(*calls)]
    model = reference_model(model_folder / "base", adapters.get(name))
    for prompt, reply in zip(prompts, replies, strict=True):
        entries = reply["choices"][0]["prompt_logprobs"]
        assert entries[0] is None
        assert len(entries) == len(prompt)
        logprobs = torch.log_softmax(reference_logits(model, prompt[:1], prompt[1:]), -1)
        for token, row, entry in zip(prompt[1:], logprobs, entries[1:], strict=True):
            assert entry[str(token)]["logprob"] == pytest.approx(row[token].item(), abs=1e-3)
            # Of tokens that are as likely to some 1e-4 another order of sums, by processor, may put either first.
            least, most = (int((row > row[token] + slack).sum()) + 1 for slack in (1e-4, -1e-4))
            assert least <= entry[str(token)]["rank"] <= most
            best = sorted((one["logprob"] for one in entry.values()), reverse=True)[:3]
            assert best == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


def test_completions_take_text_ids_and_lists(http: httpx.Client, tokenizer: Any) -> None:
    text = "Hello there"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    body = {"model": "base", "temperature": 0, "max_tokens": 6, "return_token_ids": True, "logprobs": 2}
    one = http.post("/v1/completions", json=body | {"prompt": text}).json()["choices"][0]
    same = http.post("/v1/completions", json=body | {"prompt": ids}).json()["choices"][0]
    both = http.post("/v1/completions", json=body | {"prompt": [text, "Two"]}).json()["choices"]
    assert one["token_ids"] == same["token_ids"] == both[0]["token_ids"]
    assert [choice["index"] for choice in both] == [0, 1]
    assert one["prompt_token_ids"] == ids
    assert len(one["logprobs"]["token_logprobs"]) == len(one["logprobs"]["top_logprobs"]) == 6
    assert max(one["logprobs"]["top_logprobs"][0].values()) == one["logprobs"]["token_logprobs"][0]


def test_streamed_completion_is_the_plain_one(http: httpx.Client) -> None:
    body = {"model": "base", "prompt": "Hello", "seed": 4, "max_tokens": 20, "return_token_ids": True}
    plain = http.post("/v1/completions", json=body).json()["choices"][0]
    parts = [part["choices"][0] for part in stream(http, "/v1/completions", body)]
    assert "".join(part["text"] for part in parts) == plain["text"]
    assert [token for part in parts for token in part["token_ids"]] == plain["token_ids"]
    assert parts[-1]["finish_reason"] == plain["finish_reason"]


def test_tokenize_and_detokenize(http: httpx.Client, tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "Use a tool.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ]
    body = {"model": "base", "messages": messages, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    reply = http.post("/tokenize", json=body).json()
    assert reply["count"] == len(reply["tokens"])
    text = http.post("/detokenize", json={"model": "base", "tokens": reply["tokens"]}).json()["prompt"]
    assert "Be kind." in text
    assert '{"name": "calculator", "arguments": {"expression": "1"}}' in text
    assert "<tool_response>\n1\n</tool_response>" in text
    assert "Use a tool." in text
    assert text.endswith("<think>\n\n</think>\n\n")
    assert (
        http.post("/tokenize", json={"model": "base", "prompt": "hello"}).json()["tokens"]
        == tokenizer("hello").input_ids
    )


def test_the_chat_prompt_is_what_tokenize_says(http: httpx.Client) -> None:
    said = http.post("/tokenize", json={"model": "base", **conversation("add")}).json()["tokens"]
    assert (
        chat(http, model="base", **conversation("add"), max_tokens=1, return_token_ids=True)["prompt_token_ids"]
        == said
    )


def test_default_length_fills_the_context(http: httpx.Client) -> None:
    reply = chat(http, **FREE, ignore_eos=True)
    limit = http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert reply["usage"]["total_tokens"] == limit
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, FREE | {"model": "nobody"}, 404, "nobody"),
        (CHAT, FREE | {"temperature": -1}, 400, "temperature"),
        (CHAT, FREE | {"top_p": 0}, 400, "top_p"),
        (CHAT, FREE | {"max_tokens": 0}, 400, "max_tokens"),
        (CHAT, FREE | {"n": 0}, 400, "n"),
        (CHAT, {"model": "base", "messages": "hello"}, 400, "messages"),
        (CHAT, {"model": "base", "messages": [{"role": "user", "content": 5}]}, 400, "messages"),
        (CHAT, {"model": "base"}, 400, "messages"),
        (CHAT, FREE | {"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "maximum context length"),
        ("/v1/completions", {"model": "base", "prompt": [10**6]}, 400, "vocabulary"),
        ("/v1/completions", {"model": "base", "prompt": []}, 400, ""),
    ],
)
def test_errors_have_openais_shape(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert words in error["message"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b'{"model": "\xff"}', b""])
def test_a_broken_body_is_a_400(http: httpx.Client, content: bytes) -> None:
    response = http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response).message


def test_the_key_is_needed(server: Server) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for path in ("/v1/models", "/tokenize", "/metrics"):
            response = httpx.request("POST" if path == "/tokenize" else "GET", server.base_url + path, headers=headers)
            assert response.status_code == 401
    assert httpx.get(server.base_url + "/health").status_code == 200
