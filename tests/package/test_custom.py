"""User callables are loaded, or refused in one line that names what is wrong."""

from pathlib import Path

import pytest

from clawrl_trl.custom import load_callable
from clawrl_trl.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("value = 3\ndef reward(turn): return 1.0\ndef many(a, b, *, c): return a\n")
    return path


def test_a_file_and_a_module_are_loaded(module: Path) -> None:
    assert load_callable(f"{module}:reward", parameters=["turn"])(None) == 1.0
    assert load_callable("json:dumps", parameters=["obj"])([]) == "[]"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{module}", "names no callable"),
        ("{module}:", "names no callable"),
        ("{module}:nothing", "has no 'nothing'"),
        ("{module}:value", "is a int"),
        ("{module}:many", "many(turn)"),
        ("{module}x.py:reward", "no file"),
        ("no_such_package.at_all:reward", "can't be imported"),
    ],
)
def test_mistakes_are_named(module: Path, spec: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        load_callable(spec.format(module=module), parameters=["turn"])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def reward(turn:\n")
    with pytest.raises(UserError, match="can't be imported"):
        load_callable(f"{path}:reward", parameters=["turn"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("loss.py:brevity", ["trainer", "model", "inputs", "default_loss"]),
        ("reward.py:short_replies", ["turn"]),
        ("generate.py:shorter_of_two", ["client", "model", "messages"]),
        ("rollout.py:one_verdict", ["client", "persona", "interactions", "seed"]),
    ],
)
def test_the_shipped_examples_have_the_right_signature(name: str, parameters: list[str]) -> None:
    assert callable(load_callable(str(EXAMPLES / name), parameters=parameters))
