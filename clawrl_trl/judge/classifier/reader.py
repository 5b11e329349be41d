"""How an encoder reads a message: with its adapter, request and reply beside it, and a head over the result.

The head takes the message's embedding, of unit length, and the cues of `features`. That of a sentence encoder is the
mean over the message's tokens, that of a language model is made by `chats`. Tokens of a long reply are those of its
beginning and its end, of a long request those of its beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.encoders import ENCODERS, LAST, Encoder, keep_ends

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

EMBEDDING_WEIGHT = 6.0
MAX_CHARACTERS = 1000


class Reader:
    """An encoder with its adapter and its head; one thread, deterministic, sentence encoders in float32.

    Args:
        encoder: The encoder to read with.

    Raises:
        UserError: If the encoder is missing and can't be had, or is not the published one.
    """

    def __init__(self, encoder: Encoder) -> None:
        import torch
        from safetensors.torch import load_file

        from clawrl_trl.judge.classifier.adapters import LORA_PREFIX, load_adapted

        # With one thread the sums are the same on every machine.
        torch.set_num_threads(1)
        tensors = load_file(encoder.classifier)
        self._torch = torch
        self._tokenizer = encoder.load_tokenizer()
        self._encoder = load_adapted(encoder, tensors)
        self._limits = encoder
        self._newest: tuple[tuple[str, str, str], dict[int, NDArray[np.float32]]] | None = None
        self._head = {name: tensor.numpy() for name, tensor in tensors.items() if not name.startswith(LORA_PREFIX)}

    def __call__(self, request: str, response: str, message: str) -> NDArray[np.float32]:
        """Logits of -1, 0 and +1, divided by the temperature that makes them those of messages never seen."""
        cues = (features.compute_features(request, response, message) - self._head["mean"]) / self._head["scale"]
        inputs = np.concatenate([self.embed(request, response, message), cues])
        logits: NDArray[np.float32] = self._head["head.weight"] @ inputs + self._head["head.bias"]
        logits /= self._head["temperature"]
        return logits

    def embed(self, request: str, response: str, message: str, layer: int = LAST) -> NDArray[np.float32]:
        """The message's embedding at a layer of the encoder's, of length `EMBEDDING_WEIGHT`, shape `(hidden size,)`.

        Those of the newest message are kept.
        """
        texts, layers = (request, response, message), self._limits.layers
        if self._newest is None or self._newest[0] != texts:
            with self._torch.inference_mode():
                embeddings = embed_texts(self._encoder, self._tokenizer, [texts], self._limits, layers)[:, 0]
            self._newest = texts, dict(zip(layers, (embeddings * EMBEDDING_WEIGHT).numpy(), strict=True))
        return self._newest[1][layer]


@lru_cache(maxsize=16)
def load_reader(encoder: Encoder) -> Reader:
    """The one reader of this process with an encoder and the adapter and head that it names."""
    return Reader(encoder)


def load_shared(encoder: str, *, in_ensemble: bool = False) -> Reader:
    """The classifier's reader with an encoder of `ENCODERS`, alone or in a mean with a larger one."""
    published = ENCODERS[encoder]
    weights = published.ensemble_classifier if in_ensemble else None
    return load_reader(replace(published, classifier=weights or published.classifier))


def compute_probabilities(logits: NDArray[np.float32]) -> tuple[float, float, float]:
    """Probabilities of -1, 0 and +1 by their logits."""
    exponent = np.exp(logits - logits.max())
    minus, zero, plus = (float(value) for value in exponent / exponent.sum())
    return minus, zero, plus


def embed_texts(
    encoder: "torch.nn.Module",
    tokenizer: "PreTrainedTokenizerBase",
    texts: Sequence[tuple[str, str, str]],
    limits: Encoder,
    layers: Sequence[int] = (LAST,),
) -> "torch.Tensor":
    """Embed `(request, response, message)`, in order: float32, of unit length, shape `(layers, batch, hidden size)`.

    A sentence encoder has embeddings of its last layer alone.
    """
    if not limits.is_chat_model:
        return embed(encoder, tokenise(tokenizer, texts, limits)).float().unsqueeze(0)
    from clawrl_trl.judge.classifier.chats import BranchingChat, embed_chats, pack_chats

    groups = groupby(texts, key=lambda text: (text[0], text[1]))
    chats = [BranchingChat(request, reply, [message for *_, message in group]) for (request, reply), group in groups]
    return embed_chats(encoder, pack_chats(tokenizer, chats, limits), layers)


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


def tokenise(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[tuple[str, str, str]], limits: Encoder
) -> EncodedTexts:
    """Tokenize `(request, response, message)` into a padded batch.

    Of a reply longer than the `limits` of its encoder the beginning and the end are kept, of message and request the
    beginning.
    """
    import torch

    start, end, padding = (int(getattr(tokenizer, f"{name}_token_id")) for name in ("cls", "sep", "pad"))
    rows, lengths = [], []
    for request, response, message in texts:
        ids = tokenizer(
            [part[:MAX_CHARACTERS] for part in (message, request, response[-MAX_CHARACTERS:])],
            add_special_tokens=False,
        )["input_ids"]
        said, asked, replied = ids[0][: limits.message_tokens], ids[1][: limits.request_tokens], ids[2]
        rows.append([start, *said, end, *keep_ends(replied, limits.reply_tokens), end, *asked, end])
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
