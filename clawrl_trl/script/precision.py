"""Precision of what is trained: the computing type, and what weights in 4 bits need."""

import importlib.util
from typing import TYPE_CHECKING

from clawrl_trl.engines.precision import resolve_dtype
from clawrl_trl.errors import UserError

if TYPE_CHECKING:
    from trl import ModelConfig


def choose_dtype(model: "ModelConfig", *, on_card: bool = False) -> None:
    """Put the computing type of this machine in the place of `auto`.

    Args:
        model: The arguments of the model, which are changed.
        on_card: Whether to choose as on a GPU that computes in bfloat16, whatever this machine has.

    Raises:
        UserError: If 4-bit weights are to be trained, or to be computed with in another type than bfloat16.
    """
    if model.load_in_4bit and not model.use_peft:
        raise UserError("--load_in_4bit keeps weights that can't be trained: leave --use_peft true.")
    # Sixteen bits hold a base that stays as it is, and would lose the small steps of weights that are trained.
    automatic = resolve_dtype("auto", four_bit=model.load_in_4bit or on_card) if model.use_peft else "float32"
    model.dtype = automatic if model.dtype == "auto" else model.dtype
    if model.load_in_4bit and model.dtype != "bfloat16":
        raise UserError(f"--load_in_4bit computes in bfloat16, not {model.dtype}: use --dtype bfloat16, or auto.")


def require_bitsandbytes() -> None:
    """Check that the library of 4-bit weights is installed.

    Raises:
        UserError: If it isn't.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("--load_in_4bit needs bitsandbytes: pip install 'clawrl-trl[qlora]', or leave it out.")
