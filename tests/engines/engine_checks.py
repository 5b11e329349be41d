"""Reference log-probabilities by a plain transformers forward, and the assembly of streams."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import torch
from peft import PeftModel
from torch import Tensor
from transformers import Qwen3ForCausalLM


def reference_model(base: Path, adapter: Path | None = None) -> Any:
    """The model as training sees it: plain transformers, plain PEFT."""
    model = Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32)
    return (model if adapter is None else PeftModel.from_pretrained(model, str(adapter))).eval()


@torch.no_grad()
def reference_logits(model: Any, prompt_ids: list[int], output_ids: list[int]) -> Tensor:
    """Raw logits that predict each output token, `[len(output_ids), vocabulary]`."""
    logits: Tensor = model(input_ids=torch.tensor([prompt_ids + output_ids])).logits[0]
    return logits[len(prompt_ids) - 1 : -1].float()


def logprobs_of(logits: Tensor, ids: list[int]) -> list[float]:
    logprobs: Tensor = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return logprobs.tolist()


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer with this status; asserts that it has the API's shape."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"]
    return error


def chunks(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON objects of a stream; asserts that it ends as the protocol says."""
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return chunks(response.iter_lines())


def chat_from_chunks(parts: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """One choice of a streamed chat: content, reasoning, calls, ids, log-probabilities and how it ended."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": {}}
    choice: dict[str, Any] = {"message": message, "token_ids": [], "logprobs": {"content": []}}
    for part in parts:
        for delta_choice in part["choices"]:
            if delta_choice["index"] != index:
                continue
            for name in ("content", "reasoning"):
                message[name] += delta_choice["delta"].get(name) or ""
            for call in delta_choice["delta"].get("tool_calls") or []:
                whole = message["tool_calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                for name, piece in call["function"].items():
                    whole[name] += piece or ""
            choice["token_ids"] += delta_choice.get("token_ids") or []
            choice["logprobs"]["content"] += (delta_choice.get("logprobs") or {}).get("content") or []
            choice["finish_reason"] = delta_choice["finish_reason"]
    message["tool_calls"] = [{"function": call} for call in message["tool_calls"].values()]
    return chat_from_whole(choice)


def chat_from_whole(choice: dict[str, Any]) -> dict[str, Any]:
    """One choice of a plain chat in the same form; white space around calls and thinking counts for nothing."""
    message = choice["message"]
    marked = message.get("tool_calls") or message.get("reasoning")
    content = message["content"] or ""
    return {
        "content": content.strip() if marked else content,
        "reasoning": (message.get("reasoning") or "").strip(),
        "calls": [call["function"] for call in message.get("tool_calls") or []],
        "token_ids": choice.get("token_ids") or [],
        "logprobs": (choice.get("logprobs") or {}).get("content") or [],
        "finish_reason": choice["finish_reason"],
    }
