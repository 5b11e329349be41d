"""The tool-call tasks in `examples/tasks/toolcall`: made from a seed, each with an oracle.

Step 1 is one call of one of two tools, step 2 two calls at once or a look-up and an answer, step 3 several look-ups
and an answer, or a count for the code interpreter. No question stands in both splits. The tools are those of the MCP
server `server.py` beside the tasks.

```bash
PYTHONPATH=examples python -m recipes.tasks.toolcall examples/tasks/toolcall
```
"""

import json
import random

from clawrl_trl.messages import Json
from recipes.tasks.splits import SEED, Maker, make_splits, read_folder, write_splits

DEVICES = ["light", "fan", "heat"]
PRICES = {"apple": 3, "pear": 4, "plum": 2, "lemon": 5, "bread": 6, "milk": 7}
"""What the server's shop asks; a test compares."""


def make_call(name: str, **arguments: int | str) -> Json:
    return {"name": name, "arguments": arguments}


def make_answer(value: int) -> Json:
    return {"text": f"\\boxed{{{value}}}"}


def one_device(rng: random.Random) -> Json:
    """One call, of the right one of two tools."""
    offered = rng.sample(DEVICES, 2)
    device, value = offered[0], rng.randint(0, 30)
    wording = rng.choice(("Set the {} to {}.", "Please set the {} to {}.", "Put the {} at {}."))
    calls = [make_call(device, value=value)]
    return {
        "question": wording.format(device, value),
        "calls": calls,
        "tools": sorted(offered),
        "solution": [{"calls": calls}],
    }


def two_devices(rng: random.Random) -> Json:
    """Two calls at once."""
    first, second = rng.sample(DEVICES, 2)
    values = rng.randint(0, 30), rng.randint(0, 30)
    calls = [make_call(first, value=values[0]), make_call(second, value=values[1])]
    return {
        "question": f"Set the {first} to {values[0]} and the {second} to {values[1]}.",
        "calls": calls,
        "tools": DEVICES,
        "solution": [{"calls": calls}],
    }


def one_price(rng: random.Random) -> Json:
    """A look-up, and a product that is the answer."""
    item, count = rng.choice(sorted(PRICES)), rng.randint(2, 9)
    return {
        "question": f"One {item} has a price. How much are {count} of it? Answer in \\boxed{{}}.",
        "answer": str(count * PRICES[item]),
        "tools": ["price", "multiply"],
        "solution": [{"calls": [make_call("price", item=item)]}, make_answer(count * PRICES[item])],
    }


def two_prices(rng: random.Random) -> Json:
    """Two look-ups at once, and a sum of products that is the answer."""
    first, second = rng.sample(sorted(PRICES), 2)
    counts = rng.randint(2, 9), rng.randint(2, 9)
    total = counts[0] * PRICES[first] + counts[1] * PRICES[second]
    products = [
        make_call("multiply", a=count, b=PRICES[item]) for count, item in zip(counts, (first, second), strict=True)
    ]
    return {
        "question": f"I buy {counts[0]} times {first} and {counts[1]} times {second}. What do I pay? "
        "Answer in \\boxed{}.",
        "answer": str(total),
        "tools": ["price", "multiply"],
        "solution": [
            {"calls": [make_call("price", item=first), make_call("price", item=second)]},
            {"calls": products},
            make_answer(total),
        ],
    }


def count_numbers(rng: random.Random) -> Json:
    """A count that wants a program."""
    most, small, large = rng.randint(200, 900), rng.randint(3, 9), rng.randint(11, 19)
    code = f"print(sum(1 for n in range(1, {most + 1}) if n % {small} == 0 or n % {large} == 0))"
    count = sum(1 for n in range(1, most + 1) if n % small == 0 or n % large == 0)
    return {
        "question": f"How many whole numbers from 1 to {most} can be divided by {small} or by {large}? "
        "Answer in \\boxed{}.",
        "answer": str(count),
        "tools": ["code_interpreter"],
        "solution": [{"calls": [make_call("code_interpreter", code=code)]}, make_answer(count)],
    }


STEPS: dict[int, tuple[Maker, ...]] = {
    1: (one_device,),
    2: (two_devices, one_price),
    3: (two_prices, count_numbers),
}


def generate(seed: int = SEED) -> dict[str, list[Json]]:
    """The tasks of each split.

    Args:
        seed (`int`, *optional*, defaults to `4`): The same seed gives the same tasks.
    """
    return make_splits(STEPS, _identify, seed=seed)


def _identify(task: Json) -> str:
    return json.dumps(task.get("calls") or task["question"])


if __name__ == "__main__":
    write_splits(read_folder(__doc__), generate())
