"""Observations as JSON, for environments on another machine than their policy.

Strings stay strings; a tensor becomes `{"shape", "dtype", "content"}` with its bytes in base64, so that NaN and pixels
arrive as they were. A spec is described in the same way, without content.
"""

import base64

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, TensorSpec, Unbounded

from clawrl_trl.envs.base.specs import make_text_spec
from clawrl_trl.messages import Json

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.int32, torch.float32, torch.float64)
}


def pack(state: TensorDictBase) -> Json:
    """Return an observation as JSON.

    Raises:
        TypeError: If an entry is neither a string nor a tensor of a common type.
    """
    packed: Json = {}
    for name in state.keys():  # noqa: SIM118 - a tensordict iterates over its batch
        value = state[name]
        if isinstance(value, torch.Tensor):
            packed[name] = _pack_tensor(value)
        elif isinstance(value, str):
            packed[name] = value
        else:
            raise TypeError(f"{name!r} is a {type(value).__name__}, neither a string nor a tensor")
    return packed


def unpack(packed: Json, device: torch.device | None = None) -> TensorDict:
    """Return the observation that `pack` made JSON of."""
    values = {
        name: NonTensorData(value) if isinstance(value, str) else _unpack_tensor(value)
        for name, value in packed.items()
    }
    return TensorDict(values, batch_size=(), device=device)


def describe_spec(spec: Composite) -> Json:
    """Describe a spec as JSON: `"text"`, or shape and type of a tensor."""
    return {
        name: "text" if isinstance(leaf, NonTensor) else {"shape": list(leaf.shape), "dtype": _name_dtype(leaf.dtype)}
        for name, leaf in spec.items()
    }


def make_spec(description: Json, device: torch.device | None = None) -> Composite:
    """Make the spec that `describe_spec` described."""
    leaves: dict[str, TensorSpec] = {}
    for name, leaf in description.items():
        if leaf == "text":
            leaves[name] = make_text_spec(device)
        elif leaf["dtype"] == "bool":
            leaves[name] = Categorical(2, shape=tuple(leaf["shape"]), dtype=torch.bool, device=device)
        else:
            leaves[name] = Unbounded(shape=tuple(leaf["shape"]), dtype=_DTYPES[leaf["dtype"]], device=device)
    return Composite(leaves)


def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _pack_tensor(value: torch.Tensor) -> Json:
    name = _name_dtype(value.dtype)
    if name not in _DTYPES:
        raise TypeError(f"a tensor of {name} can't be sent")
    content = base64.b64encode(value.detach().cpu().contiguous().numpy().tobytes()).decode("ascii")
    return {"shape": list(value.shape), "dtype": name, "content": content}


def _unpack_tensor(value: Json) -> torch.Tensor:
    dtype = _DTYPES[value["dtype"]]
    numbers = np.frombuffer(base64.b64decode(value["content"]), dtype=torch.empty(0, dtype=dtype).numpy().dtype)
    # Copied: a buffer of bytes is read-only, and a tensor must not be.
    return torch.from_numpy(numbers.copy()).reshape(value["shape"])
