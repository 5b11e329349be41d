"""Import of transformers' model classes, with what nobody here uses left out.

transformers asks whether scikit-learn is installed, as it is beside our sentence encoder, and imports it for assisted
generation and for scores of old benchmarks: a seventh of the work of a trainer's imports, and 36 MiB. Whoever else
imports scikit-learn in the process gets it as ever.
"""

from unittest.mock import patch


def import_model_classes() -> None:
    """Import them once; later imports from transformers find them. Needs torch, takes seconds."""
    import transformers.utils

    with patch.object(transformers.utils, "is_sklearn_available", return_value=False):
        import transformers.data
        from transformers import GenerationMixin  # noqa: F401
