"""The bundled model: a small Qwen3 that does short arithmetic homework and follows style instructions.

It lets the whole loop run on a plain machine without a download. Other packages use `MODEL_PATH`, the folder to load.
The recipe that made it is `examples/recipes/tiny` in a clone.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).parent / "model"

__all__ = ["MODEL_PATH"]
