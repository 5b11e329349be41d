"""The model as the trainer computes with it: transformers, and PEFT for adapters.

The doctor holds every log-prob of an engine against this. It runs on the processor, in float32 where that fits, so
it takes nothing from the card that the engine is on.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

from clawrl_trl.doctor.finding import Skip
from clawrl_trl.doctor.memory import GIB
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.policies.targets import list_layers_beside_experts

NOTICEABLE = 0.5
"""Mean change of a log-prob, in nats, that a made-up adapter must cause: far above any rounding."""
SMALLEST, GROWTH, STEPS = 2.0**-12, 1.4, 48
"""The scale that a made-up adapter begins with, what it is multiplied with, and how often at most."""


class Reference:
    """A causal language model and any number of adapters on it.

    Args:
        model: As transformers loads it.
        dtype: `"float32"` or `"bfloat16"`.
    """

    def __init__(self, model: Any, dtype: str) -> None:
        self.dtype = dtype
        self._model = model.eval()
        self._targets = list_layers_beside_experts(self._model) or "all-linear"
        self._adapted = False

    @classmethod
    def load(cls, path: str, shape: Shape) -> "Reference":
        """Load a model in the widest type that fits into the free memory.

        Raises:
            Skip: If none fits, or there is no such model.
        """
        import psutil
        from transformers.utils import logging
        from trl.trainer.utils import create_model_from_path

        free = psutil.virtual_memory().available
        fitting = [dtype for dtype in ("float32", "bfloat16") if shape.weights(dtype) < 0.8 * free]
        if not fitting:
            need = shape.weights("bfloat16") / GIB
            raise Skip(f"recomputing needs {need:.1f} GiB of memory, {free / GIB:.1f} GiB are free")
        # The bar of the weights would be drawn into the report.
        logging.disable_progress_bar()
        try:
            model = create_model_from_path(path, dtype=fitting[0], device_map="cpu")
        except (OSError, ValueError) as error:
            raise Skip(f"the model can't be loaded ({str(error).splitlines()[0][:160]})") from None
        return cls(model, fitting[0])

    def logprobs(
        self, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0, adapter: str | None = None
    ) -> list[float]:
        """Log-probs of the completion's tokens, `[len(completion)]`.

        Args:
            prompt: Token ids before them, at least one.
            completion: Token ids to score.
            temperature: Temperature of the distribution.
            adapter: Name of an adapter made with `make_adapter`; `None` is the base model.
        """
        import torch

        ids = torch.tensor([[*prompt, *completion]])
        # The logits at a position are those of the token after it.
        with torch.inference_mode(), self._select_adapter(adapter):
            logits = self._model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        table = (logits / temperature).log_softmax(-1)
        return [float(logprob) for logprob in table.gather(1, ids[0, len(prompt) :, None])[:, 0]]

    def _select_adapter(self, adapter: str | None) -> AbstractContextManager[None]:
        if not self._adapted:
            return nullcontext()
        if adapter is None:
            context: AbstractContextManager[None] = self._model.disable_adapter()
            return context
        self._model.set_adapter(adapter)
        return nullcontext()

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter from its folder, unless one of this name is there already.

        Args:
            name: Its name here.
            folder: What PEFT saved.
        """
        from peft import PeftModel

        if not self._adapted:
            self._model = PeftModel.from_pretrained(self._model, str(folder), adapter_name=name).eval()
            self._adapted = True
        elif name not in self._model.peft_config:
            self._model.load_adapter(str(folder), adapter_name=name)

    def make_adapter(
        self, name: str, folder: Path, seed: int, prompt: Sequence[int], completion: Sequence[int]
    ) -> Path:
        """Make a random adapter on all linear layers and save it.

        It grows until it changes the log-probs of a reply noticeably, whatever the model's scale.

        Args:
            name: Its name here.
            folder: Where it is saved, in a folder of its name.
            seed: Of its weights.
            prompt: Token ids, at least one.
            completion: Token ids of the reply.

        Returns:
            The adapter's folder.
        """
        import torch
        from peft import LoraConfig, get_peft_model

        # A check leaves the random state of the process as it is.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # PEFT's own initialisation leaves B at 0: such an adapter would change nothing.
            config = LoraConfig(r=4, lora_alpha=8, target_modules=self._targets, init_lora_weights=False)
            if self._adapted:
                self._model.add_adapter(name, config)
            else:
                self._model = get_peft_model(self._model, config, adapter_name=name).eval()
                self._adapted = True
        self._grow_adapter(name, prompt, completion)
        self._model.save_pretrained(folder, selected_adapters=[name])
        return folder / name

    def _grow_adapter(self, name: str, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Scale an adapter up from far too small until it changes the log-probs noticeably."""
        import torch

        weights = [weight for key, weight in self._model.named_parameters() if f"lora_B.{name}." in key]
        base_logprobs = self.logprobs(prompt, completion)
        with torch.no_grad():
            for weight in weights:
                weight.mul_(SMALLEST)
            for _ in range(STEPS):
                adapter_logprobs = self.logprobs(prompt, completion, adapter=name)
                if fmean(abs(a - b) for a, b in zip(base_logprobs, adapter_logprobs, strict=True)) >= NOTICEABLE:
                    return
                for weight in weights:
                    weight.mul_(GROWTH)
