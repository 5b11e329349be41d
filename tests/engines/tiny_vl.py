"""A tiny random Qwen2.5-VL behind an engine's HTTP, for the plumbing: it sees what an engine sees, and points.

Random weights write no call, so the model chooses: of a few calls it answers with the one that it finds most likely
after what it was shown, token by token, with its own log-probs. The images are prepared by transformers' image
processor on Pillow, for torchvision is not there.
"""

import base64
import io
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gateway_rig import ScriptedEngine, chunk, data, stream_of
from numpy.typing import NDArray
from PIL import Image
from starlette.responses import Response
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from clawrl_trl.tiny import MODEL_PATH

START, PAD, END = VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
POINTS = ((100, 150), (500, 400), (900, 650))


@dataclass
class Seen:
    """What one request showed the model."""

    images: list[NDArray[np.uint8]]
    pixel_values: torch.Tensor | None
    prompt_ids: list[int]
    point: tuple[int, int]


@dataclass
class TinyVL(ScriptedEngine):
    """The engine; `seen` has an entry for each request."""

    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
        self.tokenizer.add_special_tokens({"additional_special_tokens": [*VISION, "<|video_pad|>"]})
        text = "{%- if part is mapping and part.type == 'text' %}"
        image = "{%- if part is mapping and part.type == 'image_url' %}{{- '" + "".join(VISION) + "' }}{%- endif %}"
        assert text in self.tokenizer.chat_template
        self.tokenizer.chat_template = self.tokenizer.chat_template.replace(text, image + text)
        self.prepare = Qwen2VLImageProcessorPil()
        self.model = self.fresh_model()
        self.script = [seeing] * 1000

    def fresh_model(self) -> Any:
        ids = dict(zip(("vision_start", "image", "vision_end"), map(self._id, VISION), strict=True))
        config = Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(self.tokenizer),
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
            },
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 64,
                "fullatt_block_indexes": [1],
            },
            video_token_id=self._id("<|video_pad|>"),
            **{f"{name}_token_id": token_id for name, token_id in ids.items()},
        )
        torch.manual_seed(0)
        return Qwen2_5_VLForConditionalGeneration(config).eval()

    def _id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def look(self, body: dict[str, Any]) -> tuple[Seen, list[int], list[float]]:
        """What a request shows, the tokens of the reply to it, and their log-probs."""
        urls = [
            part["image_url"]["url"]
            for message in body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        images = [np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))) for url in urls]
        prepared = (
            self.prepare(images=[Image.fromarray(pixels) for pixels in images], return_tensors="pt") if images else {}
        )
        text = self.tokenizer.apply_chat_template(
            body["messages"], tools=body.get("tools"), tokenize=False, add_generation_prompt=True
        )
        for grid in prepared.get("image_grid_thw", ()):
            text = text.replace(PAD, "<>" * (int(grid.prod()) // self.prepare.merge_size**2), 1)
        prompt = self.tokenizer.encode(text.replace("<>", PAD), add_special_tokens=False)
        written = {point: self.tokenizer.encode(_call(point), add_special_tokens=False) for point in POINTS}
        scored = {point: self._logprobs(prompt, ids, prepared) for point, ids in written.items()}
        point = max(POINTS, key=lambda name: sum(scored[name]) / len(scored[name]))
        return Seen(images, prepared.get("pixel_values"), prompt, point), written[point], scored[point]

    @torch.no_grad()
    def _logprobs(self, prompt: list[int], ids: list[int], prepared: Any) -> list[float]:
        tokens = torch.tensor([[*prompt, *ids]])
        output = self.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == self._id(PAD)).int(),
            **prepared,
        )
        log_probs = output.logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return [float(row[token]) for row, token in zip(log_probs, ids, strict=True)]


def _call(point: tuple[int, int]) -> str:
    arguments = {"action": "left_click", "coordinate": list(point)}
    return f'<tool_call>\n{{"name": "computer_use", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


async def seeing(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
    """The reply of the model to what it sees, as vLLM streams it."""
    assert isinstance(engine, TinyVL) and body["stream"]
    seen, ids, logprobs = engine.look(body)
    engine.seen.append(seen)
    words = tuple(engine.tokenizer.decode([token_id]) for token_id in ids)
    events = []
    for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        event = chunk(body, words, place)
        event["choices"][0]["token_ids"] = [token]
        event["choices"][0]["logprobs"]["content"][0]["logprob"] = logprob
        if place == 0:
            event["prompt_token_ids"] = seen.prompt_ids
        events.append(data(event))
    return stream_of(*events, b"data: [DONE]\n\n")
