"""The bundled tiny model: a small Qwen3 that does short arithmetic homework and takes style instructions.

It exists so that the whole live loop runs on a plain machine without a download. `MODEL_PATH` is the folder
to load; `problems` makes the word problems it knows (training and held-out ones); `python -m
clawrl_trl.tiny.build` is the seeded recipe that made it and `python -m clawrl_trl.tiny.evaluate` measures it.
Importing this package, or `problems`, does not import torch.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).parent / "model"

__all__ = ["MODEL_PATH"]
