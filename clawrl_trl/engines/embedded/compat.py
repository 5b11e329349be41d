"""Private names of transformers that the embedded engine needs: named and checked here alone."""

from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

PIN = "pip install 'transformers>=5.10.4,<5.18'"


def attention_name(model: PreTrainedModel) -> str:
    """Name of the attention function that a model computes with, such as `"sdpa"` or `"eager"`.

    Raises:
        AttributeError: If this version of transformers keeps it elsewhere; the message says what to install.
    """
    try:
        return str(model.config._attn_implementation)
    except AttributeError:
        raise AttributeError(
            f"transformers {transformers_version} has no config._attn_implementation, which the embedded engine "
            f"needs: {PIN}"
        ) from None
