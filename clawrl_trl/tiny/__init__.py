"""The bundled tiny model: a small Qwen3 that does short arithmetic homework and takes style instructions.

It exists so that the whole live loop runs on a plain machine without a download. `MODEL_PATH` is the folder to load.
The recipe that made it is `examples/recipes/tiny` in a clone.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).parent / "model"

__all__ = ["MODEL_PATH"]
