"""Worker extension of our vLLM server: takes the weights of a whole model from a folder.

vLLM mixes `PolicyLoader` into its worker class (see `worker`), so it must not hold a name that a worker has. Its
public methods are called from outside, `load_policy` while no step runs. vLLM keeps a processed copy of some weights
(on a CPU of all of them), so weights are never written in place: its own layerwise reload loads and processes them
again. With tied embeddings a checkpoint holds one tensor for two layers, and vLLM would leave the second one as it
was; the second is therefore sent by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from clawrl_trl.engines.vllm import compat
from clawrl_trl.engines.vllm.compat import abandon_reload, has_tied_embeddings, reload_weights, worker_model

if TYPE_CHECKING:
    import torch

HEAD = "lm_head.weight"
"""The output layer, which a checkpoint with tied embeddings need not hold."""

_EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "embed_in.weight")


class PolicyLoader:
    """Mixed into vLLM's worker; `self` is the worker."""

    def load_policy(self, folder: str) -> None:
        """Replace the weights of the model by those in a folder.

        Args:
            folder (`str`): A model in safetensors, of the shape of the one that is served.
        """
        modules = (name for name, _ in worker_model(self).named_modules())
        has_head = any(name.split(".")[-1] == "lm_head" for name in modules)
        tied = has_head and has_tied_embeddings(self)
        try:
            reload_weights(self, read_checkpoint(Path(folder), tied=tied))
        except BaseException:
            abandon_reload(self)
            raise

    def count_cache_bytes(self) -> int:
        """Count the bytes that the keys and values take."""
        return compat.count_cache_bytes(self)


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of every tensor in a model's folder, by name.

    Raises:
        SafetensorError: If a file is damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    return shapes


def read_checkpoint(folder: Path, *, tied: bool) -> "Iterator[tuple[str, torch.Tensor]]":
    """Read every tensor of a model's folder, with its name, layer by layer.

    Args:
        folder (`Path`): Holds `*.safetensors`.
        tied (`bool`): Whether an output layer shares the embeddings; then it is among the tensors in any case.

    Raises:
        FileNotFoundError: If the folder holds no weights.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    has_head = False
    embeddings = None
    for path in paths:
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_tensor(name)
                has_head = has_head or name == HEAD
                if name.endswith(_EMBEDDINGS):
                    embeddings = tensor
                yield name, tensor
    # vLLM loads a tensor into the layer of its name alone, and would leave the output layer as it was.
    if tied and not has_head and embeddings is not None:
        yield HEAD, embeddings
