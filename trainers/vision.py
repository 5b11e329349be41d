"""The pictures of a prompt, as the model that is trained must see them.

The ids of a picture stand for nothing without its pixels. The engine repeats a picture's id once for every patch
that the model sees, so a sample says itself how many patches its pictures had, and a picture that this processor would
cut in another way is found out before it is trained on. For models of Qwen-VL's kind, whose image processors give a
grid for each picture; TRL carries what others need as well, but their ids don't tell.
"""

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import PeftConfig
from PIL import Image, ImageOps
from transformers import (
    AutoConfig,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from trl import GRPOConfig

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers.inputs import Inputs, PictureInputs

_VISION_MODULES = r"(.*\.)?(visual|vision_tower|vision_model|multi_modal_projector)(\..*)?"
"""Modules that see, as a pattern: an engine that serves adapters by name adapts the language model alone."""


def exclude_vision_modules(
    peft_config: PeftConfig | None, model: PreTrainedModel | str, args: GRPOConfig
) -> PeftConfig | None:
    """An adapter config whose "all-linear" leaves out the modules that see, unless it excludes others itself.

    Args:
        peft_config: The config; `None` for none.
        model: The model that is to be adapted, or its name.
        args: The trainer's, which say how a model is loaded by its name.
    """
    if peft_config is None or getattr(peft_config, "target_modules", None) != "all-linear":
        return peft_config
    if peft_config.exclude_modules:
        return peft_config
    if isinstance(model, str):
        revision = (args.model_init_kwargs or {}).get("revision")
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=args.trust_remote_code)
    else:
        config = model.config
    if not hasattr(config, "vision_config"):
        return peft_config
    adapted = copy.copy(peft_config)
    adapted.exclude_modules = _VISION_MODULES
    return adapted


def select_picture_inputs(inputs: Mapping[str, object]) -> dict[str, Any]:
    """The pictures' arguments of TRL's forward pass, out of a micro-batch's inputs; empty without pictures."""
    return {name: inputs[name] for name in PictureInputs.__annotations__ if name in inputs}


def select_model_picture_inputs(inputs: Mapping[str, object]) -> dict[str, Any]:
    """The same for the model itself, which does not ask how many pictures a row has."""
    # TRL names every argument it knows, with `None` for those that a micro-batch lacks.
    pictures = select_picture_inputs(inputs)
    return {name: value for name, value in pictures.items() if name != "num_images" and value is not None}


class Vision:
    """Prepares pictures for one model.

    Args:
        processor: Its image processor, which gives `pixel_values` and `image_grid_thw`.
        token: The id that stands for a patch.
    """

    def __init__(self, processor: BaseImageProcessor, token: int) -> None:
        self._processor = processor
        self._token = token

    @classmethod
    def of(
        cls, processing_class: PreTrainedTokenizerBase | ProcessorMixin, config: PreTrainedConfig
    ) -> "Vision | None":
        """That of a model with this processor and config; `None` if it sees nothing, or is of another kind."""
        processor = getattr(processing_class, "image_processor", None)
        token = getattr(config, "image_token_id", None)
        is_supported = hasattr(processor, "get_number_of_image_patches") and hasattr(processor, "merge_size")
        return cls(processor, token) if is_supported and token is not None else None

    def find_fault(self, sample: TrainingSample) -> str | None:
        """Say why the pictures of a sample can't be shown as they were when it was sampled; `None` if they can."""
        try:
            patches = sum(self._count_tokens(*_open_picture(file).size) for file in sample.images)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            return f"one of its pictures can't be read ({error})"
        ids = int((sample.prompt_ids == self._token).sum() + (sample.completion_ids == self._token).sum())
        if ids != patches:
            return f"its prompt shows {ids} patches, its pictures have {patches}: the engine prepares them otherwise"
        return None

    def add_pictures(self, inputs: Inputs, samples: Sequence[TrainingSample]) -> None:
        """Add the pictures of a micro-batch to its inputs; nothing if no sample has any.

        Args:
            inputs: The micro-batch.
            samples: Its B samples.
        """
        files = [file for sample in samples for file in sample.images]
        if not files:
            return
        prepared = self._processor(images=[_open_picture(file) for file in files], return_tensors="pt")
        inputs["pixel_values"], inputs["image_grid_thw"] = prepared["pixel_values"], prepared["image_grid_thw"]
        inputs["num_images"] = [len(sample.images) for sample in samples]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        inputs["mm_token_type_ids"] = (ids == self._token).int()

    def _count_tokens(self, width: int, height: int) -> int:
        patches: int = self._processor.get_number_of_image_patches(height, width, {})
        return patches // int(self._processor.merge_size) ** 2


def _open_picture(file: bytes) -> Image.Image:
    """A picture upright and in colours, on white where one looks through it, as vLLM shows it."""
    with Image.open(io.BytesIO(file)) as stored:
        image = ImageOps.exif_transpose(stored)
        if image.mode == "RGB" or not image.has_transparency_data:
            return image.convert("RGB")
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
