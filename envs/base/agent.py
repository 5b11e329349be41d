"""Base class for agent environments: turns `begin`, `act` and `evaluate` into a TorchRL `EnvBase`.

A subclass (terminal, browser, repository, tools) says what an episode begins with, what an action brings, and how well
the task was done; `AgentEnv` keeps the conversation, counts steps, ends the episode and grades it. It never raises on
what a policy or a world does, because an environment that raises takes its whole pool down: a model's mistake is an
observation, and a broken world ends the episode as dropped, with the reason and with NaN as reward, so that it can't
be trained on.
"""

import json
import logging
import math
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from clawrl_trl.envs.base.episode import Effect, EpisodeState, Start, Task, WorldBroken
from clawrl_trl.envs.base.message import Action, make_result_messages, read_action
from clawrl_trl.envs.base.specs import make_observation_spec, set_step_specs
from clawrl_trl.judge.provenance import clean_checker_words
from clawrl_trl.messages import Json, text_of

__all__ = ["MAX_FAULTS", "MAX_SILENCES", "AgentEnv", "Effect", "Start", "Task", "WorldBroken"]

logger = logging.getLogger(__name__)

MAX_SILENCES = 3
"""Replies in a row that may fail to arrive before an episode is dropped."""
MAX_FAULTS = 3
"""Actions that can't be read before an episode ends."""

T = TypeVar("T", bound=Task)
V = TypeVar("V")


class AgentEnv(EnvBase, Generic[T]):  # type: ignore[misc]
    """An agent at work on one task at a time.

    Subclasses implement `begin`, `act`, `evaluate` and, where a world needs closing, `finish`; each may raise
    [`WorldBroken`], and any other exception ends the episode in the same way, logged with its traceback.

    TensorDict keys (batch size `()`; tensors have shape `(1,)`, texts are non-tensor strings):

    | key | type | content |
    |---|---|---|
    | `message` | text | text of the last message from the world |
    | `conversation` | text | all messages, JSON of the chat API's list |
    | `tools` | text | schemas of the tools on offer, JSON list |
    | `task_id`, `session_id` | text | the task; the episode's name, new with each reset |
    | `step` | int64 | actions taken |
    | `faults` | int64 | actions that could not be read |
    | `signal` | float32 | process score of the last action in [-1, 1]: -1 if unreadable, NaN if it has none |
    | `outcome` | float32 | grade in [-1, 1]; NaN until the episode ends, and when it is dropped |
    | `dropped`, `reason` | bool, text | whether the episode is dropped, and why |
    | `hints` | text | at the end, JSON object: step (from `"0"`) to what its reply should have been told before |
    | `action` (input) | text | see [`clawrl_trl.envs.base.message.read_action`]; empty: no reply arrived |
    | `next_task` (input of reset, optional) | int64 | position of the task to begin |
    | `reward` | float32 | 0 until the episode ends, then the outcome; NaN when it is dropped |
    | `done`, `terminated`, `truncated` | bool | the end, see below |

    An episode ends (`terminated`) when the agent is done, after `MAX_FAULTS` unreadable actions, or when it is
    dropped, and early (`truncated`) after `max_steps` actions; a truncated episode has an outcome all the same.

    The environment calls a subclass in this order: `begin` once, `act` for each readable action, `evaluate` once and
    `advise` if the outcome is below 1, then `finish`, always. A subclass that observes more adds to
    `observation_spec` in `_make_specs` and to the observations in `observe_more`.

    Args:
        tasks (`Sequence[Task]`): The tasks, taken in turn; a reset may name one by its position in the key
            `next_task` of the tensordict it is given.
        max_steps (`int`): Most actions of an episode.
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        device (`torch.device`, *optional*): Where the tensors live.
    """

    def __init__(
        self, tasks: Sequence[T], *, max_steps: int, first_task: int = 0, device: torch.device | str | None = None
    ) -> None:
        if not tasks:
            raise ValueError("an environment needs at least one task")
        super().__init__(device=device, batch_size=())
        self.tasks = tasks
        self.max_steps = max_steps
        self.next_task = first_task
        self._episode = EpisodeState()
        self._make_specs()

    @property
    def steps_taken(self) -> int:
        """Actions of the episode so far, the one under way included."""
        return self._episode.steps

    @property
    def messages(self) -> list[Json]:
        """The conversation so far, chat API; a subclass may shorten what it holds in place."""
        return self._episode.messages

    @property
    def drop_reason(self) -> str:
        """Why the episode is dropped; empty while it counts."""
        return self._episode.drop_reason

    @abstractmethod
    def begin(self, task: T) -> Start:
        """Set the world up for `task`; idempotent, it leaves nothing of an earlier episode."""

    @abstractmethod
    def act(self, action: Action) -> Effect:
        """Carry out a readable action, once."""

    @abstractmethod
    def evaluate(self) -> float:
        """Grade the episode, in [-1, 1]; called once, when it has ended."""

    def advise(self) -> Mapping[int, str]:
        """Return what the checker found wanting, by step from 0; called after `evaluate` where the outcome is below 1.

        The words become hints for a teacher: they tell what was expected and what was found, and quote nothing that
        the agent printed but what the checker itself compared.
        """
        return {}

    def finish(self) -> None:
        """Take the world down; called after every episode and by `close`, also when `begin` failed."""

    def observe_more(self) -> dict[str, Any]:
        """Return values for the observations that a subclass added to `observation_spec`."""
        return {}

    def conclude(self) -> TensorDictBase:
        """End the episode where it is, and observe its outcome; one that has ended already is observed again."""
        if self._episode.is_open:
            return self._observe(terminated=False, truncated=True)
        return self._last_observation.clone()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Take the world down for good."""
        self._finish_episode()
        super().close(raise_if_closed=raise_if_closed)

    def _make_specs(self) -> None:
        self.observation_spec = make_observation_spec(self.device)
        set_step_specs(self)

    def _set_seed(self, seed: int | None) -> None:
        self.next_task = (seed or 0) % len(self.tasks)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._finish_episode()
        index = self.next_task
        if tensordict is not None and "next_task" in tensordict:
            index = int(tensordict["next_task"])
        self.next_task = index + 1
        self.task = self.tasks[index % len(self.tasks)]
        # Fresh for each episode: a session that is played twice would go on with the first one's history.
        self.session_id = f"{type(self).__name__}-{self.task.id}-{uuid.uuid4().hex[:8]}"
        # Open before `begin`: a world that broke half set up must be taken down too.
        self._episode = EpisodeState(is_open=True)
        start = self._run_guarded(partial(self.begin, self.task))
        if start is not None:
            self._episode.messages, self._episode.tools = list(start.messages), start.tools
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        episode, reply = self._episode, str(tensordict["action"])
        if not episode.is_open:
            # A copy: the caller may write into what it is given, its next action for example.
            return self._last_observation.clone()
        episode.signal = None
        if episode.drop_reason:  # `begin` failed; TorchRL refuses a reset that is done
            return self._observe(terminated=True)
        if not reply.strip():
            episode.silences += 1
            if episode.silences >= MAX_SILENCES:
                episode.drop_reason = "no reply arrived"
            return self._observe(terminated=bool(episode.drop_reason), truncated=False)
        episode.silences = 0
        episode.steps += 1
        agent_done = self._apply_action(read_action(reply))
        out_of_steps = episode.steps >= self.max_steps
        return self._observe(
            terminated=agent_done or bool(episode.drop_reason), truncated=out_of_steps and not agent_done
        )

    def _apply_action(self, action: Action) -> bool:
        """Carry out an action and append its effect to the conversation; returns whether the agent is done."""
        episode = self._episode
        episode.messages.append(action.message)
        if action.fault is not None:
            episode.faults += 1
            episode.signal = -1.0
            self._add_hint(episode.steps - 1, f"Error: {action.fault}.")
            episode.messages += make_result_messages(action, [f"Error: {action.fault}."])
            return episode.faults >= MAX_FAULTS
        effect = self._run_guarded(partial(self.act, action))
        if effect is None:
            return True
        episode.signal = effect.signal
        self._add_hint(episode.steps - 1, effect.hint)
        if action.calls or action.message.get("tool_calls"):
            episode.messages += make_result_messages(action, effect.results)
        elif effect.results:
            episode.messages.append({"role": "user", "content": "\n".join(effect.results)})
        # Images go into a user message of their own: a tool's result may be text only in the chat API.
        if effect.parts:
            episode.messages.append({"role": "user", "content": effect.parts})
        return effect.ended

    def _run_guarded(self, work: Callable[[], V]) -> V | None:
        """Run `work` and return its result; `None`, with the reason kept, when the world broke."""
        try:
            return work()
        except WorldBroken as error:
            self._episode.drop_reason = str(error) or "the world broke"
        except Exception as error:  # else the whole pool would be lost with it
            logger.exception("An episode of %s is dropped.", type(self).__name__)
            self._episode.drop_reason = f"{type(error).__name__}: {error}"
        return None

    def _grade(self) -> float:
        outcome = float(self.evaluate())
        if not math.isfinite(outcome):  # the bounds below would make a 1 of it
            raise WorldBroken(f"the outcome is {outcome}, no finite number")
        for step, words in self.advise().items() if outcome < 1 else ():
            self._add_hint(step, words)
        return max(-1.0, min(1.0, outcome))

    def _add_hint(self, step: int, words: str | None) -> None:
        if words and (hint := clean_checker_words(words)):
            self._episode.hints.setdefault(step, []).append(hint)

    def _finish_episode(self) -> None:
        if self._episode.is_open:
            self._episode.is_open = False
            try:
                self.finish()
            except Exception:  # the next episode must go on
                logger.exception("A world of %s could not be closed.", type(self).__name__)

    def _observe(self, *, terminated: bool | None = None, truncated: bool = False) -> TensorDictBase:
        """Observe the episode, and grade it if it ends here; `terminated=None` is a reset, which has no reward."""
        episode = self._episode
        ended = bool(terminated) or truncated
        outcome = math.nan
        # Graded before anything is observed: grading may drop the episode and adds the hints.
        if ended and not episode.drop_reason:
            grade = self._run_guarded(self._grade)
            outcome = math.nan if grade is None else grade
        observation: dict[str, Any] = {
            "message": _find_world_text(episode.messages),
            "conversation": json.dumps(episode.messages, ensure_ascii=False),
            "tools": json.dumps(episode.tools, ensure_ascii=False),
            "task_id": self.task.id,
            "session_id": self.session_id,
            "reason": episode.drop_reason,
            "hints": json.dumps(episode.hints if ended else {}, ensure_ascii=False),
            "step": torch.tensor([episode.steps]),
            "faults": torch.tensor([episode.faults]),
            "signal": torch.tensor([math.nan if episode.signal is None else float(episode.signal)]),
            "outcome": torch.tensor([outcome]),
            "dropped": torch.tensor([bool(episode.drop_reason)]),
            "done": torch.tensor([ended]),
            "terminated": torch.tensor([bool(terminated)]),
            "truncated": torch.tensor([truncated]),
            **self.observe_more(),
        }
        if terminated is not None:
            observation["reward"] = torch.tensor([outcome if ended else 0.0])
        if ended:
            self._finish_episode()
        self._last_observation = TensorDict(observation, batch_size=(), device=self.device)
        return self._last_observation.clone()


def _find_world_text(messages: Sequence[Json]) -> str:
    """The text of the last message that the world sent."""
    return next((text_of(message) for message in reversed(messages) if message["role"] != "assistant"), "")
