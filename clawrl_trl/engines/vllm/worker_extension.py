"""Worker extension of our vLLM server: takes the weights of a whole model from a folder.

vLLM mixes `PolicyLoader` into its worker class (see `worker`), so it must not hold a name that a worker has. Only
`load_policy` is called from outside, while no step runs. vLLM keeps a processed copy of some weights (on a CPU of all
of them), so weights are never written in place: its own layerwise reload loads and processes them again. With tied
embeddings a checkpoint holds one tensor for two layers, and vLLM would leave the second one as it was; the second is
therefore sent by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

HEAD = "lm_head.weight"
"""The output layer, which a checkpoint with tied embeddings need not hold."""

_EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "embed_in.weight")


class PolicyLoader:
    """Mixed into vLLM's worker; `self` is the worker."""

    model_config: Any
    model_runner: Any
    reload_weights: Any

    def load_policy(self, folder: str) -> None:
        """Replace the weights of the model by those in a folder.

        Args:
            folder (`str`): A model in safetensors, of the shape of the one that is served.
        """
        modules = (name for name, _ in self.model_runner.get_model().named_modules())
        has_head = any(name.split(".")[-1] == "lm_head" for name in modules)
        tied = has_head and bool(self.model_config.hf_text_config.tie_word_embeddings)
        try:
            self.reload_weights(weights_iterator=checkpoint(Path(folder), tied=tied))
        except BaseException:
            _give_up_loading(self.model_runner.get_model(), self.model_config)
            raise


def _give_up_loading(model: Any, config: Any) -> None:
    """End a reload that failed half-way, so that another one can begin.

    Layers that were complete keep their new weights, the others have their old ones back: the model is good for
    nothing but to be loaded again.
    """
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, get_layerwise_info

    for layer in model.modules():
        half = get_layerwise_info(layer)
        half.loaded_weights.clear()
        half.load_numel = 0
    finalize_layerwise_reload(model, config)


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a model's folder by name.

    Raises:
        SafetensorError: If a file is damaged.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            found |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    return found


def checkpoint(folder: Path, *, tied: bool) -> Iterator[tuple[str, Any]]:
    """Every tensor of a model's folder by name, layer by layer.

    Args:
        folder (`Path`): Holds `*.safetensors`.
        tied (`bool`): Whether an output layer shares the embeddings; then it is among the tensors in any case.

    Raises:
        FileNotFoundError: If the folder holds no weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    head_there = False
    embeddings = None
    for path in files:
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_tensor(name)
                head_there = head_there or name == HEAD
                if name.endswith(_EMBEDDINGS):
                    embeddings = tensor
                yield name, tensor
    if tied and not head_there and embeddings is not None:
        yield HEAD, embeddings
