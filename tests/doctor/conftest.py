from collections.abc import Iterator

import pytest
from doctor_rig import start_engine

from clawrl_trl.doctor.reference import Reference
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.tiny import MODEL_PATH


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a sound engine with the bundled model; whoever asks for it is of the group "doctor"."""
    process, url = start_engine(tmp_path_factory.mktemp("engine"), max_model_len=1024)
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture
def reference() -> Reference:
    """The bundled model in transformers; fresh, because adapters stay on it."""
    return Reference.load(str(MODEL_PATH), Shape.of(MODEL_PATH))
