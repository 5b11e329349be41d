"""Observations as JSON, so that an environment can live on another machine than who acts in it.

Strings stay strings; a tensor becomes its shape, its type and its bytes, so that NaN and pixels arrive as they were.
What the environment observes is told the same way, without content.
"""

import base64
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, TensorSpec, Unbounded

Json = dict[str, Any]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.int32, torch.float32, torch.float64)
}


def pack(state: TensorDictBase) -> Json:
    """The observation as JSON.

    Raises:
        TypeError: If an entry is neither a string nor a tensor of a common type.
    """
    packed: Json = {}
    for name in state.keys():  # noqa: SIM118 - a tensordict iterates over its batch
        value = state[name]
        if isinstance(value, torch.Tensor):
            packed[name] = _packed(value)
        elif isinstance(value, str):
            packed[name] = value
        else:
            raise TypeError(f"{name!r} is a {type(value).__name__}, neither a string nor a tensor")
    return packed


def unpack(packed: Json, device: torch.device | None = None) -> TensorDict:
    """The observation out of its JSON."""
    values = {name: value if isinstance(value, str) else _unpacked(value) for name, value in packed.items()}
    return TensorDict(
        {name: NonTensorData(value) if isinstance(value, str) else value for name, value in values.items()},
        batch_size=(),
        device=device,
    )


def describe(spec: Composite) -> Json:
    """Describe a spec as JSON: `"text"`, or shape and type of a tensor."""
    return {
        name: "text" if isinstance(leaf, NonTensor) else {"shape": list(leaf.shape), "dtype": _name(leaf.dtype)}
        for name, leaf in spec.items()
    }


def spec_of(described: Json, device: torch.device | None = None) -> Composite:
    """The spec of what `describe` told."""
    leaves: dict[str, TensorSpec] = {}
    for name, leaf in described.items():
        if leaf == "text":
            leaves[name] = NonTensor(shape=(), example_data="", device=device)
        elif leaf["dtype"] == "bool":
            leaves[name] = Categorical(2, shape=tuple(leaf["shape"]), dtype=torch.bool, device=device)
        else:
            leaves[name] = Unbounded(shape=tuple(leaf["shape"]), dtype=_DTYPES[leaf["dtype"]], device=device)
    return Composite(leaves)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _packed(value: torch.Tensor) -> Json:
    name = _name(value.dtype)
    if name not in _DTYPES:
        raise TypeError(f"a tensor of {name} can't be sent")
    content = base64.b64encode(value.detach().cpu().contiguous().numpy().tobytes()).decode("ascii")
    return {"shape": list(value.shape), "dtype": name, "content": content}


def _unpacked(value: Json) -> torch.Tensor:
    dtype = _DTYPES[value["dtype"]]
    flat = np.frombuffer(base64.b64decode(value["content"]), dtype=torch.empty(0, dtype=dtype).numpy().dtype)
    return torch.from_numpy(flat.copy()).reshape(value["shape"])
