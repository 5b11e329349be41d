"""The environment that the documentation shows is one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrl.envs.utils import check_env_specs

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def make_policy(answer: str) -> Callable[[Any], Any]:
    return lambda td: td.set("action", answer)


def test_the_environment_on_the_page() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], names)
    env = names["RiddleEnv"]([names["Riddle"]("sum", "2 + 3?", "5")], max_steps=1)
    check_env_specs(env, break_when_any_done="both", seed=0)
    for answer, worth in (("5", 1.0), ("6", -1.0)):
        rollout = env.rollout(3, make_policy(answer))
        assert rollout["next", "reward"].flatten().tolist() == [worth]
