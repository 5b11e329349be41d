"""The import of transformers' model classes leaves out scikit-learn, and nobody else misses it."""

import subprocess
import sys

import pytest

LOOK = """
import sys
from clawrl_trl.model_classes import import_model_classes
import_model_classes()
import clawrl_trl.trainers
from transformers import AutoModelForCausalLM
assert "transformers.generation.candidate_generator" in sys.modules and "transformers.data.metrics" in sys.modules
assert not {"sklearn", "scipy.stats"} & set(sys.modules)
import sklearn.metrics
import transformers.utils
assert transformers.utils.is_sklearn_available()
"""


@pytest.mark.slow
def test_only_who_asks_for_scikit_learn_imports_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
