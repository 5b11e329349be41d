"""A training sample: one sampled reply with everything a trainer needs to give it credit.

The tokens are the ids the engine sampled, never text tokenised again, and every per-token array lines up with
them; a sample that breaks this can't be built. The module knows neither torch nor the ledger, so that any
iterable of these, or of JSON rows with the same keys, can feed a trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clawrl_trl.pictures import read_url

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSample:
    """One reply, as it was sampled.

    Args:
        prompt_ids (`[P]` ints): Token ids of the rendered prompt; at least one.
        completion_ids (`[T]` ints): Token ids the engine sampled; at least one.
        logprobs (`[T]` floats): Log-probabilities in nats under the distribution actually sampled from (temperature
            and truncation included): the behaviour policy S of the importance ratio.
        sample_id (`str`): Identifier, for logs.
        images (`tuple[bytes, ...]`): Files of the prompt's pictures (PNG, JPEG, ...), in the order in which the prompt
            shows them; a `data:` URL stands for its content. The ids have an entry for each patch that the model sees.
        completion_mask (`[T]` bools, *optional*): False on tokens that are not the model's (tool output). Default:
            every token counts.
        policy_version (`int`): Version that sampled the reply; 0 is the base model.
        temperature (`float`): Sampling temperature, above 0; the loss uses the same.
        score (`float`, *optional*): The verdict, usually -1 or 1. `None` when the judge abstained.
        teacher_logprobs (`[T]` floats, *optional*): Log-probabilities of the same tokens under the teacher, at
            temperature 1. NaN where the teacher gave none.
        plain_logprobs (`[T]` floats, *optional*): Log-probabilities of the same tokens under the sampling policy and
            the plain prompt, at temperature 1.
        topk_ids (`[T, K]` ints, *optional*): Candidates for each token, most likely first, without repetition; -1 in
            an empty slot.
        topk_logprobs (`[T, K]` floats, *optional*): The teacher's log-probabilities of the candidates, at
            temperature 1; NaN in an empty slot.
        group (`str`, *optional*): Rollouts of one task share it; their scores are normalised together.
        baseline (`float`, *optional*): Mean of the scores this one is compared with, where that is known already.
        scale (`float`, *optional*): Their standard deviation; known when the baseline is.
        weight (`float`): Factor on the sample's advantages.

    Raises:
        ValueError: If a length does not fit, an array is empty, a picture is neither a file's content nor a `data:`
            URL, or the temperature is not above 0.
    """

    prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray
    sample_id: str = ""
    images: tuple[bytes, ...] = ()
    completion_mask: BoolArray | None = None
    policy_version: int = 0
    temperature: float = 1.0
    score: float | None = None
    teacher_logprobs: FloatArray | None = None
    plain_logprobs: FloatArray | None = None
    topk_ids: IntArray | None = None
    topk_logprobs: FloatArray | None = None
    group: str | None = None
    baseline: float | None = None
    scale: float | None = None
    weight: float = field(default=1.0)

    def __post_init__(self) -> None:
        self._set("prompt_ids", np.asarray(self.prompt_ids, dtype=np.int64))
        self._set("completion_ids", np.asarray(self.completion_ids, dtype=np.int64))
        if self.prompt_ids.ndim != 1 or self.completion_ids.ndim != 1 or not self.prompt_ids.size:
            raise ValueError(f"sample {self.sample_id!r}: prompt_ids and completion_ids must be lists of token ids")
        if not self.completion_ids.size:
            raise ValueError(f"sample {self.sample_id!r}: completion_ids is empty")
        for name in ("logprobs", "teacher_logprobs", "plain_logprobs"):
            self._set(name, self._per_token(name, np.float64))
        # Tokens without them have no importance ratio, and none can be made up.
        if self.logprobs is None:
            raise ValueError(f"sample {self.sample_id!r}: logprobs are missing")
        self._set("completion_mask", self._per_token("completion_mask", np.bool_))
        self._set("images", tuple(map(self._picture, self.images or ())))
        self._set_candidates()
        # With one of them alone the group would be measured in the batch, which may hold a part of it only.
        if (self.baseline is None) != (self.scale is None):
            raise ValueError(f"sample {self.sample_id!r}: baseline and scale come together")
        if not self.temperature > 0:
            raise ValueError(f"sample {self.sample_id!r}: temperature {self.temperature} is not above 0")

    def _set(self, name: str, value: object) -> None:
        # The class is frozen, and its arrays are converted once, when it is made.
        object.__setattr__(self, name, value)

    def _per_token(self, name: str, dtype: type[np.generic]) -> NDArray[np.generic] | None:
        value: ArrayLike | None = getattr(self, name)
        if value is None:
            return None
        array = np.asarray(value, dtype=dtype)
        if array.shape != self.completion_ids.shape:
            raise ValueError(
                f"sample {self.sample_id!r}: {name} has shape {array.shape}, not {self.completion_ids.shape}"
            )
        return array

    def _picture(self, source: bytes | str) -> bytes:
        content = source if isinstance(source, bytes) else read_url(source)[1]
        if not content:
            raise ValueError(f"sample {self.sample_id!r}: a picture is a file's content or a data: URL of it")
        return content

    def _set_candidates(self) -> None:
        if self.topk_ids is None and self.topk_logprobs is None:
            return
        ids = np.asarray([] if self.topk_ids is None else self.topk_ids, dtype=np.int64)
        logprobs = np.asarray([] if self.topk_logprobs is None else self.topk_logprobs, dtype=np.float64)
        if ids.ndim != 2 or ids.shape != logprobs.shape or len(ids) != len(self.completion_ids):
            raise ValueError(
                f"sample {self.sample_id!r}: topk_ids {ids.shape} and topk_logprobs {logprobs.shape} must both have "
                f"shape ({len(self.completion_ids)}, K)"
            )
        valid = (ids >= 0) & np.isfinite(logprobs)
        ids, logprobs = np.where(valid, ids, -1), np.where(valid, logprobs, np.nan)
        # A candidate that stood twice would count its probability twice in the divergence over candidates and tail.
        ordered = np.sort(ids, axis=1)
        if np.any((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)):
            raise ValueError(f"sample {self.sample_id!r}: a token has the same candidate twice")
        self._set("topk_ids", ids)
        self._set("topk_logprobs", logprobs)

    @property
    def measure(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the scores that this one is compared with, where they are known."""
        return None if self.baseline is None or self.scale is None else (self.baseline, self.scale)

    @property
    def covered(self) -> BoolArray:
        """`[T]` whether the teacher knows any candidate for the token."""
        if self.topk_ids is None:
            return np.zeros(len(self.completion_ids), dtype=np.bool_)
        return np.asarray((self.topk_ids >= 0).any(axis=1))

    def with_candidates(self, k: int) -> "TrainingSample":
        """The same sample with at most `k` candidates for each token."""
        if self.topk_ids is None or self.topk_logprobs is None or self.topk_ids.shape[1] <= k:
            return self
        ids, logprobs = (self.topk_ids[:, :k], self.topk_logprobs[:, :k]) if k else (None, None)
        return replace(self, topk_ids=ids, topk_logprobs=logprobs)

    @property
    def plain_at_temperature_one(self) -> FloatArray | None:
        """`[T]` log-probabilities S of the OPD gap: the stored ones, or the behaviour's when sampled at 1."""
        if self.plain_logprobs is not None:
            return self.plain_logprobs
        # At another temperature the two sides of the gap would be different distributions of the same model.
        return self.logprobs if self.temperature == 1.0 else None

    @classmethod
    def from_row(cls, row: "Mapping[str, object] | TrainingSample") -> "TrainingSample":
        """Make a sample from a JSON row with the field names as keys; unknown keys are ignored.

        Raises:
            ValueError: If a key without a default is missing, or the content does not fit together.
        """
        if isinstance(row, TrainingSample):
            return row
        missing = [name for name in ("prompt_ids", "completion_ids", "logprobs") if row.get(name) is None]
        if missing:
            raise ValueError(f"a training row lacks {', '.join(missing)}; it has {', '.join(sorted(row))}")
        names = {declared.name for declared in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in row.items() if name in names}
        return cls(**values)
