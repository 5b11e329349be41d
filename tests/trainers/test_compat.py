"""Private names of TRL, transformers and PEFT: each exists, and each that a trainer overrides is declared."""

import tomllib
from pathlib import Path

import pytest
from made_up import make_samples

from clawrl_trl.errors import UserError
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer, CombineConfig, CombineTrainer, OPDConfig, OPDTrainer
from clawrl_trl.trainers.compat import (
    OVERRIDDEN,
    PARAMETERS,
    PINS,
    USED,
    check_names,
    check_parameters,
    record_metric,
    require,
)
from clawrl_trl.trainers.loader import StepEnds
from clawrl_trl.trainers.update_log import UpdateLines

OWN = (AsyncGRPOTrainer, OPDTrainer, CombineTrainer, AsyncGRPOConfig, OPDConfig, CombineConfig, StepEnds, UpdateLines)


def is_own(owner: type) -> bool:
    return owner.__module__.startswith("clawrl_trl.")


def overridden_names(own: type) -> set[str]:
    """Private names that a class of ours, or a base of ours, defines over a library's."""
    library = {name for base in own.__mro__ if not is_own(base) for name in vars(base)}
    names = {name for base in own.__mro__ if is_own(base) for name in vars(base)}
    return {name for name in names & library if name.startswith("_") and not name.startswith("__")} - {"_abc_impl"}


def test_every_name_exists() -> None:
    check_names((OVERRIDDEN, USED))
    check_parameters(PARAMETERS)


def test_what_is_overridden_is_declared() -> None:
    declared = {name for names in OVERRIDDEN.values() for name in names}
    assert set.union(*map(overridden_names, OWN)) == declared


@pytest.mark.parametrize("owner", ["trl.GRPOTrainer", "trl.trainer.utils", "trl.trainer.gone", "trl.Gone"])
def test_a_name_that_is_gone_says_what_to_install(owner: str) -> None:
    with pytest.raises(UserError, match=r"^trl 1\.\S+ has no trl\..*, which the trainers need: pip install 'trl>="):
        require(owner, "_no_such_name")


def test_a_parameter_that_is_gone_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"has no transformers\.Trainer\.save_model\._gone.* 'transformers>="):
        check_parameters({"transformers.Trainer.save_model": ("_gone",)})


def test_what_only_an_instance_has_exists(tiny: Path, tmp_path: Path) -> None:
    args = AsyncGRPOConfig(output_dir=str(tmp_path), use_cpu=True, max_steps=1, beta=0.0)
    trainer = AsyncGRPOTrainer(model=str(tiny), args=args, source=make_samples(1))
    record_metric(trainer, "level", 1.0)
    record_metric(trainer, "level", 2.0)
    trainer.model.train()  # TRL logs those of the mode the model is in
    trainer.log({})
    assert trainer.state.log_history[-1]["level"] == 1.5
    del trainer._metrics
    with pytest.raises(UserError, match=r"has no trl\.GRPOTrainer\._metrics"):
        record_metric(trainer, "level", 1.0)


def test_the_pins_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(PINS.values()) <= set(project["dependencies"])
