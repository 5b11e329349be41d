"""Specs that the environments share: texts, counts, numbers and flags, and a text as the action."""

import torch
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase


def make_text_spec(device: torch.device | None, example: str = "") -> NonTensor:
    """Return the spec of a string; `example` is what `fake_tensordict` shows for it."""
    return NonTensor(shape=(), example_data=example, device=device)


def make_count_spec(device: torch.device | None) -> Unbounded:
    """Return the spec of an int64 tensor of shape `(1,)`."""
    return Unbounded(shape=(1,), dtype=torch.int64, device=device)


def make_number_spec(device: torch.device | None) -> Unbounded:
    """Return the spec of a float32 tensor of shape `(1,)`."""
    return Unbounded(shape=(1,), dtype=torch.float32, device=device)


def make_flag_spec(device: torch.device | None) -> Categorical:
    """Return the spec of a bool tensor of shape `(1,)`."""
    return Categorical(2, shape=(1,), dtype=torch.bool, device=device)


def make_observation_spec(device: torch.device | None) -> Composite:
    """Return the spec of what every [`AgentEnv`] observes."""
    return Composite(
        message=make_text_spec(device),
        conversation=make_text_spec(device, "[]"),
        tools=make_text_spec(device, "[]"),
        task_id=make_text_spec(device),
        session_id=make_text_spec(device),
        reason=make_text_spec(device),
        hints=make_text_spec(device, "{}"),
        step=make_count_spec(device),
        faults=make_count_spec(device),
        signal=make_number_spec(device),
        outcome=make_number_spec(device),
        dropped=make_flag_spec(device),
    )


def set_step_specs(env: EnvBase, action_example: str = "") -> None:
    """Set the specs of a step: a text as `action`, a float32 `reward` and the three flags of the end, each `(1,)`."""
    env.action_spec = make_text_spec(env.device, action_example)
    env.reward_spec = make_number_spec(env.device)
    # Stated, because TorchRL's default done spec has no `truncated`.
    env.done_spec = Composite({name: make_flag_spec(env.device) for name in ("done", "terminated", "truncated")})
