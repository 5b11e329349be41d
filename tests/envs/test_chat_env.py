"""ChatEnv as a TorchRL world: specs, episodes, pools; no network."""

import json
from functools import partial

import pytest
import torch
from tensordict import NonTensorStack, TensorDictBase
from torchrl.envs import AsyncEnvPool, EnvBase, ParallelEnv, RewardSum, StepCounter, TransformedEnv, check_env_specs

from clawrl_trl.envs.chat.env import MAX_SILENCES, ChatEnv
from clawrl_trl.envs.chat.personas import PERSONAS

LIKED = {
    "student": "Tom has 5 apples. He buys 7 more, so 5 + 7 = 12. The answer is 12.",
    "teacher": "Good try! You set it up well, but look at the last step: 5 + 7 = 12. You will get it next time!",
}
DISLIKED = "**Final answer:** 12"


def make_policy(*replies: str):
    """A policy that gives these replies, the last one for ever."""
    remaining = list(replies)

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", remaining.pop(0) if len(remaining) > 1 else remaining[0])

    return policy


@pytest.mark.parametrize("name", PERSONAS)
def test_specs(name: str) -> None:
    check_env_specs(ChatEnv(name), break_when_any_done="both", seed=0)


@pytest.mark.parametrize("name", PERSONAS)
def test_objection_then_approval_then_goodbye(name: str) -> None:
    rollout = ChatEnv(name, seed=1).rollout(10, make_policy(DISLIKED, LIKED[name]))
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 1.0, 0.0]
    assert rollout["next", "approved"].flatten().tolist() == [False, True, True]
    assert rollout["next", "terminated"].flatten().tolist() == [False, False, True]
    assert rollout["next", "turn"].flatten().tolist() == [2, 3, 3]
    talk = json.loads(rollout["next", "conversation"][-1])
    assert [message["role"] for message in talk] == ["user", "assistant"] * 3
    assert [message["content"] for message in talk[1::2]] == [DISLIKED, LIKED[name], LIKED[name]]
    assert talk[2]["content"] == rollout["next", "message"][0] == rollout["message"][1]


def test_a_stubborn_assistant_runs_out_of_turns() -> None:
    rollout = ChatEnv("student", max_turns=4).rollout(20, make_policy(DISLIKED))
    assert len(rollout) == 4
    assert not rollout["next", "approved"].any()
    assert rollout["next", "terminated"][-1].item()
    assert len(set(rollout["message"])) == 4


def test_liked_at_once_ends_after_the_goodbye() -> None:
    rollout = ChatEnv("student").rollout(20, make_policy(LIKED["student"]))
    assert rollout["next", "reward"].flatten().tolist() == [1.0, 0.0]


def test_silence_is_asked_again_and_then_given_up() -> None:
    env = ChatEnv("student")
    rollout = env.rollout(20, make_policy("", " ", LIKED["student"]))
    assert len(set(rollout["message"][:3])) == 1
    assert rollout["next", "failed"].flatten().tolist() == [1, 2, 2, 2]
    assert rollout["next", "terminated"][-1].item()

    given_up = env.rollout(20, make_policy(""))
    assert len(given_up) == MAX_SILENCES
    assert given_up["next", "truncated"][-1].item() and given_up["next", "dropped"][-1].item()
    assert not given_up["next", "terminated"].any()
    assert given_up["next", "reward"][-1].isnan().item() and given_up["next", "reason"][-1] == "no reply arrived"


def test_correctness_is_reported_apart_from_style() -> None:
    env = ChatEnv("student", seed=4)
    env.reset()
    answer = env.task.answer
    env.next_episode = 0
    right = env.rollout(1, make_policy(f"**Final answer:** {answer}"))
    env.next_episode = 0
    wrong = env.rollout(1, make_policy(f"**Final answer:** {answer + 1}"))
    assert right["next", "correct"].item() and not wrong["next", "correct"].item()
    assert right["next", "reward"].item() == wrong["next", "reward"].item() == 0.0


def test_episodes_follow_from_the_seed() -> None:
    def talk(env: EnvBase, episodes: int) -> list[list[str]]:
        return [list(env.rollout(10, make_policy(DISLIKED))["message"]) for _ in range(episodes)]

    first = talk(ChatEnv("student", seed=7), 4)
    assert first == talk(ChatEnv("student", seed=7), 4)
    assert first[2:] == talk(ChatEnv("student", seed=7, first_episode=2), 2)
    assert first != talk(ChatEnv("student", seed=8), 4)
    assert first == talk(ChatEnv("student", seed=7, think_time=1e-6), 4)
    env = ChatEnv("student")
    env.set_seed(7)
    assert talk(env, 4) == first
    assert len({messages[0] for messages in talk(ChatEnv("student", seed=7), 150)}) == 150


def test_sessions_have_ids_of_their_own() -> None:
    env = ChatEnv("student")
    assert len({env.reset()["session_id"] for _ in range(20)}) == 20


def test_transforms_around_it() -> None:
    env = TransformedEnv(ChatEnv("teacher"), StepCounter(max_steps=5)).append_transform(RewardSum())
    rollout = env.rollout(10, make_policy(DISLIKED, LIKED["teacher"]))
    assert rollout["next", "episode_reward"][-1].item() == 1.0
    assert rollout["next", "step_count"][-1].item() == 3


def test_pool_of_threads() -> None:
    pool = AsyncEnvPool(
        [partial(ChatEnv, "student", seed=seed) for seed in range(4)], backend="threading", stack="lazy"
    )
    likes = [0] * 4
    try:
        ready = pool.reset()
        for _ in range(24):
            for env_state in ready.unbind(0):
                env_state.set("action", LIKED["student"])
            pool.async_step_and_maybe_reset_send(ready)
            stepped, ready = pool.async_step_and_maybe_reset_recv(min_get=1, max_get=4)
            for env_state in stepped.unbind(0):
                likes[env_state["env_index"]] += int(env_state["next", "reward"].item())
    finally:
        pool.close()
    assert min(likes) >= 1


@pytest.mark.slow
def test_parallel_processes() -> None:
    env = ParallelEnv(2, [partial(ChatEnv, "student", seed=seed) for seed in range(2)], use_buffers=False)

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", NonTensorStack(*[LIKED["student"]] * 2))

    try:
        rollout = env.rollout(2, policy)
    finally:
        env.close()
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert rollout["next", "terminated"].squeeze(-1).tolist() == [[False, True], [False, True]]
    assert rollout[0]["message"][0] != rollout[1]["message"][0]


def test_reward_and_flags_live_on_the_device() -> None:
    state = ChatEnv("student", device="cpu").reset()
    assert state["turn"].device == torch.device("cpu")
