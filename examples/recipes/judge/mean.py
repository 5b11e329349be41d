"""The mean of two passes' weights (https://huggingface.co/papers/2203.05482), which errs less than either.

    PYTHONPATH=examples python -m recipes.judge.mean first.safetensors second.safetensors --output mean.safetensors

The second went on from the first. The mean of their adapters, (up1 @ down1 + up2 @ down2) / 2, has both ranks. With
`--keep_rank` it is that of their factors, (up1 + up2) / 2 @ (down1 + down2) / 2, half as large: of two of the language
model's passes the two means differ by a ninth of what either pass is away from them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def compute_mean(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The mean of two sets of weights as `train` writes them; the adapter's rank is the sum of both."""
    mean = {}
    for name, tensor in first.items():
        if name.endswith(".down"):
            mean[name] = torch.cat([tensor, second[name]])
        elif name.endswith(".up"):
            mean[name] = torch.cat([tensor.float(), second[name].float()], 1).div(2).half()
        else:
            mean[name] = (tensor + second[name]) / 2
    return mean


def compute_mean_of_factors(
    first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The mean of each tensor; the adapter keeps its rank."""
    return {name: ((tensor.float() + second[name].float()) / 2).to(tensor.dtype) for name, tensor in first.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read both files and write their mean."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.judge.mean", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, help="Weights of one pass.")
    parser.add_argument("second", type=Path, help="Weights of another, with the same mean and scale of the cues.")
    parser.add_argument("--output", type=Path, required=True, help="The file to write.")
    parser.add_argument("--keep_rank", action="store_true", help="Take the mean of the adapter's factors.")
    options = parser.parse_args(arguments)
    compute = compute_mean_of_factors if options.keep_rank else compute_mean
    save_file(compute(load_file(options.first), load_file(options.second)), options.output)


if __name__ == "__main__":
    main()
