"""The classifier of the owner's next message: approval, objection, or neither.

A sentence encoder (`encoders`) with a small adapter reads the message with reply and request behind it: the same words
object after one reply and begin something new after another. A linear head takes the mean over the message's tokens
and a few counted cues; `examples/recipes/judge` makes adapter and head from its labelled messages. Nothing is loaded
before the first message: the judge of a run that sees only tool results needs none of it.

It reads English. A message in another language, or in several, gets no score (`language`), nor does a bare question
approve of anything, or object unless it is about the reply: who asks on may be content or puzzled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import features, language, symbols
from clawrl_trl.judge.classifier import doubts
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, Encoder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LORA_PREFIX = "adapter."
LABELS = (-1, 0, 1)
MARGIN = 0.5
"""Least difference of P(+1) and P(-1) with which it approves; see `train`."""
OBJECTION_MARGIN = 0.6
"""The same of an objection, which also writes a hint; both were chosen on the sets in docs/judge.md."""
NEUTRAL = 0.6
"""Least P(0) with which it says that a message tells nothing of the reply."""
EMBEDDING_WEIGHT = 6.0
MESSAGE_TOKENS, REPLY_TOKENS, REQUEST_TOKENS = 64, 32, 20
MAX_CHARACTERS = 1000


@dataclass(frozen=True)
class Opinion:
    """The classifier's opinion of one message.

    Args:
        score: -1 objection, +1 approval or moving on, 0 a message that tells nothing of the reply, `None` when it
            can't tell.
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
        encoder: The encoder to read with, and its adapter and head.

    Raises:
        UserError: If the encoder is missing and can't be had, or is not the published one.
    """

    def __init__(self, encoder: Encoder = ENCODERS[MINILM]) -> None:
        import torch
        from safetensors.torch import load_file

        # With one thread the sums are the same on every machine.
        torch.set_num_threads(1)
        tensors = load_file(encoder.classifier)
        self._torch = torch
        self._tokenizer = encoder.load_tokenizer()
        self._encoder = merge_adapter(encoder.load_model(), tensors)
        self._head = {
            name: tensors[name].numpy() for name in ("head.weight", "head.bias", "mean", "scale", "temperature")
        }

    def __call__(self, request: str, response: str, message: str) -> Opinion:
        """The opinion on one message of the owner's, which followed `response` to `request`."""
        if not language.is_english(message, request):
            return NOT_READ
        logits = self._compute_logits(request, response, message)
        opinion = decide(logits, temperature=float(self._head["temperature"][0]))
        if symbols.is_symbols(message):
            return replace(opinion, score=symbols.score_symbols(message), reason="nothing but symbols")
        doubt = doubts.find_doubt(request, response, message, opinion.score, opinion.probabilities[0])
        return replace(opinion, score=None, reason=doubt) if doubt else opinion

    def _compute_logits(self, request: str, response: str, message: str) -> NDArray[np.float32]:
        with self._torch.inference_mode():
            embedding = embed(self._encoder, tokenise(self._tokenizer, [(request, response, message)]))[0].numpy()
        cues = (features.compute_features(request, response, message) - self._head["mean"]) / self._head["scale"]
        inputs = np.concatenate([embedding * EMBEDDING_WEIGHT, cues])
        logits: NDArray[np.float32] = self._head["head.weight"] @ inputs + self._head["head.bias"]
        return logits


def decide(logits: NDArray[np.float32], margin: float = MARGIN, temperature: float = 1.0) -> Opinion:
    """Opinion of three logits.

    A sign needs a difference of P(+1) and P(-1) of at least `margin` (an objection of `OBJECTION_MARGIN`, if that is
    more) and more than one half of the probability; 0 needs `NEUTRAL`. Otherwise it abstains.

    Args:
        logits: Of -1, 0 and +1.
        margin: See above.
        temperature: What logits are divided by; it makes the probabilities those of messages never seen.
    """
    exponent = np.exp((logits - logits.max()) / temperature)
    minus, zero, plus = (float(value) for value in exponent / exponent.sum())
    # A wrong objection does more harm: it writes a hint, and distils the opposite of what was meant.
    winner = 1 if plus > minus else -1
    needed = margin if winner == 1 else max(margin, OBJECTION_MARGIN)
    score = winner if abs(plus - minus) >= needed and max(plus, minus) > 0.5 else 0 if zero >= NEUTRAL else None
    return Opinion(score, (minus, zero, plus))


def merge_adapter(encoder: "PreTrainedModel", tensors: "Mapping[str, torch.Tensor]") -> "PreTrainedModel":
    """Add the adapter to the encoder's weights, in place: W + up @ down for each adapted layer."""
    modules = dict(encoder.named_modules())
    for name in tensors:
        if name.startswith(LORA_PREFIX) and name.endswith(".down"):
            stem = name.removesuffix(".down")
            layer = modules[stem.removeprefix(LORA_PREFIX)]
            layer.weight.data += tensors[f"{stem}.up"].float() @ tensors[name].float()
    return encoder


@dataclass(frozen=True)
class EncodedTexts:
    """Tokens of some messages in their contexts, each array of shape `(batch, length)`.

    Attributes:
        tokens: Ids; message, reply and request, in this order, with separators.
        attention: 1 where a token stands.
        message: 1 at the message's own tokens.
    """

    tokens: "torch.Tensor"
    attention: "torch.Tensor"
    message: "torch.Tensor"


def tokenise(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[tuple[str, str, str]]) -> EncodedTexts:
    """Tokenize `(request, response, message)` into a padded batch.

    Of a long reply the beginning and the end are kept, of a request the beginning.
    """
    import torch

    start, end, padding = (int(getattr(tokenizer, f"{name}_token_id")) for name in ("cls", "sep", "pad"))
    rows, lengths = [], []
    for request, response, message in texts:
        ids = tokenizer(
            [part[:MAX_CHARACTERS] for part in (message, request, response[-MAX_CHARACTERS:])],
            add_special_tokens=False,
        )["input_ids"]
        said, asked, replied = ids[0][:MESSAGE_TOKENS], ids[1][:REQUEST_TOKENS], ids[2]
        if len(replied) > REPLY_TOKENS:
            replied = replied[: REPLY_TOKENS // 3] + replied[-(REPLY_TOKENS - REPLY_TOKENS // 3) :]
        rows.append([start, *said, end, *replied, end, *asked, end])
        lengths.append(len(said) + 2)
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    places = torch.arange(longest)
    attention = (places < torch.tensor([[len(row)] for row in rows])).long()
    return EncodedTexts(tokens, attention, (places < torch.tensor(lengths).unsqueeze(1)).long())


def embed(encoder: "torch.nn.Module", batch: EncodedTexts) -> "torch.Tensor":
    """Embed a batch: the mean over the message's tokens, of unit length, shape `(batch, hidden size)`."""
    hidden = encoder(input_ids=batch.tokens, attention_mask=batch.attention).last_hidden_state
    mask = batch.message.unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    result: torch.Tensor = mean / mean.norm(dim=-1, keepdim=True)
    return result


@lru_cache(maxsize=len(ENCODERS))
def load_shared(encoder: str = MINILM) -> Classifier:
    """The one classifier of this process with an encoder of `ENCODERS`, loaded at the first call."""
    return Classifier(ENCODERS[encoder])
