"""The mean of two passes' weights (https://huggingface.co/papers/2203.05482), which errs less than either.

    PYTHONPATH=examples python -m recipes.judge.mean first.safetensors second.safetensors --output mean.safetensors

The second went on from the first. The mean of their adapters, (up1 @ down1 + up2 @ down2) / 2, has both ranks.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Read both files and write their mean."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.judge.mean", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, help="Weights of one pass.")
    parser.add_argument("second", type=Path, help="Weights of another, with the same mean and scale of the cues.")
    parser.add_argument("--output", type=Path, required=True, help="The file to write.")
    options = parser.parse_args(arguments)
    save_file(compute_mean(load_file(options.first), load_file(options.second)), options.output)


if __name__ == "__main__":
    main()
