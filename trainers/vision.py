"""The pictures of a prompt, as the model that is trained must see them.

The ids of a picture stand for nothing without its pixels. The engine repeats a picture's id once for every patch
that the model sees, so a sample says itself how many patches its pictures had, and a picture that this processor would
cut in another way is found out before it is trained on. For models of Qwen-VL's kind, whose image processors give a
grid for each picture; TRL carries what others need as well, but their ids don't tell.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image, ImageOps
from transformers import BaseImageProcessor, PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers.inputs import Inputs, PictureInputs


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
