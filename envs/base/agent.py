"""The common outside of the environments in which an agent works: conversation, limits, the end, the outcome.

A world (terminal, browser, repository, tools) says what to begin with, what an action brings, and how well the task
was done in the end; `AgentEnv` turns that into TorchRL's contract. It promises never to raise on what a policy or
a world does, because an environment that raises poisons a whole pool: a model's mistake is an observation, a broken
world ends the episode as dropped, with the reason and with NaN for a reward, so that it can't be trained on.
"""

import json
import logging
import math
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase

from clawrl_trl.envs.base.message import Action, Json, read_action, tool_results
from clawrl_trl.judge.provenance import clean_checker_words
from clawrl_trl.messages import text_of

logger = logging.getLogger(__name__)

MAX_SILENCES = 3
"""Replies in a row that may fail to arrive before an episode is dropped."""
MAX_FAULTS = 3
"""Actions that can't be read before an episode ends."""


class Task(Protocol):
    """Protocol of a task: all that the base class needs of it."""

    @property
    def id(self) -> str:
        """A name that is unique within its task set."""


T = TypeVar("T", bound=Task)
V = TypeVar("V")


@dataclass(frozen=True)
class Start:
    """Begin of an episode.

    Attributes:
        messages (`list[dict]`): The first messages, chat API: an optional system message and the user's.
        tools (`list[dict]`): Schemas of the tools on offer, chat API.
    """

    messages: list[Json]
    tools: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Effect:
    """Effect of an action.

    Attributes:
        results (`list[str]`): A text for each of its calls; for an action without calls that does not end the
            episode, one text that says what to do instead.
        ended (`bool`): Whether the agent is done (it submitted, gave its answer, or the world closed).
        parts (`list[dict]`): Further content parts (images) that follow the texts as a user message, chat API.
        signal (`float`, *optional*): The world's process score of the action, in [-1, 1].
        hint (`str`, *optional*): Where the action was refused, the form that it should have had; in the environment's
            own words, never in those of a program that the agent ran.
    """

    results: list[str]
    ended: bool = False
    parts: list[Json] = field(default_factory=list)
    signal: float | None = None
    hint: str | None = None


def worst(signals: Iterable[float | None]) -> float | None:
    """The process score of calls made together: that of the worst; `None` where none has one."""
    return min((one for one in signals if one is not None), default=None)


class WorldBroken(Exception):
    """The world can't go on for a reason that is not the policy's; the episode is dropped with this reason."""


class AgentEnv(EnvBase, Generic[T]):  # type: ignore[misc]
    """An agent at work on one task at a time.

    Subclasses give `begin`, `act`, `evaluate` and, where a world needs closing, `finish`; each may raise
    [`WorldBroken`], and any other exception ends the episode in the same way, logged with its traceback.

    Observations: `message` (text of the last message from the world), `conversation` (all messages, JSON of the chat
    API's list), `tools` (JSON list of schemas), `task_id`, `session_id`, `step` (int64, actions taken), `faults`
    (int64, actions that could not be read), `signal` (float32 in [-1, 1], the world's process score of the last
    action, -1 for one that could not be read, NaN where there is none), `outcome` (float32 in [-1, 1], NaN until the
    episode ends), `dropped` (bool), `reason` (why) and, at the end, `hints` (JSON: for each step that fell short, from
    "0", what the environment would have told before it).
    Action: `action`, see [`clawrl_trl.envs.base.message.read_action`]; an empty one means that no reply arrived.
    Reward: 0.0 until the episode ends, then the outcome; NaN when it was dropped.
    An episode ends (`terminated`) when the agent is done, after `MAX_FAULTS` unreadable actions, or when it is
    dropped, and early (`truncated`) after `max_steps` actions; a truncated episode has an outcome all the same.

    Args:
        tasks (`Sequence[Task]`): The tasks, taken in turn; a reset may name one by its position in the key
            `next_task` (int64) of the tensordict it is given.
        max_steps (`int`): Most actions of an episode.
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        device (`torch.device`, *optional*): Where the flags live.
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
        self._open = False
        self._make_specs()

    @property
    def steps_taken(self) -> int:
        """Actions of the episode so far, the one under way included."""
        return self._steps

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
        """Values for the observations that a subclass added to `observation_spec`."""
        return {}

    def conclude(self) -> TensorDictBase:
        """End the episode where it is, and observe its outcome; what has ended already is told again."""
        return self._observe(terminated=False, truncated=True) if self._open else self._last.clone()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Take the world down for good."""
        self._leave()
        super().close(raise_if_closed=raise_if_closed)

    def _make_specs(self) -> None:
        count = Unbounded(shape=(1,), dtype=torch.int64, device=self.device)
        flag = Categorical(2, shape=(1,), dtype=torch.bool, device=self.device)
        self.observation_spec = Composite(
            message=NonTensor(shape=(), example_data="", device=self.device),
            conversation=NonTensor(shape=(), example_data="[]", device=self.device),
            tools=NonTensor(shape=(), example_data="[]", device=self.device),
            task_id=NonTensor(shape=(), example_data="", device=self.device),
            session_id=NonTensor(shape=(), example_data="", device=self.device),
            reason=NonTensor(shape=(), example_data="", device=self.device),
            hints=NonTensor(shape=(), example_data="{}", device=self.device),
            step=count.clone(),
            faults=count.clone(),
            signal=Unbounded(shape=(1,), device=self.device),
            outcome=Unbounded(shape=(1,), device=self.device),
            dropped=flag.clone(),
        )
        self.action_spec = NonTensor(shape=(), example_data="", device=self.device)
        self.reward_spec = Unbounded(shape=(1,), device=self.device)
        self.done_spec = Composite(done=flag.clone(), terminated=flag.clone(), truncated=flag.clone())

    def _set_seed(self, seed: int | None) -> None:
        self.next_task = (seed or 0) % len(self.tasks)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._leave()
        index = self.next_task
        if tensordict is not None and "next_task" in tensordict:
            index = int(tensordict["next_task"])
        self.next_task = index + 1
        self.task = self.tasks[index % len(self.tasks)]
        self.session_id = f"{type(self).__name__}-{self.task.id}-{uuid.uuid4().hex[:8]}"
        self._messages: list[Json] = []
        self._tools: list[Json] = []
        self._steps = self._faults = self._silences = 0
        self._reason = ""
        self._signal: float | None = None
        self._hints: dict[int, list[str]] = {}
        self._open = True
        start = self._guarded(partial(self.begin, self.task))
        if start is not None:
            self._messages, self._tools = list(start.messages), start.tools
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        said = str(tensordict["action"])
        if not self._open:
            return self._last.clone()
        self._signal = None
        if self._reason:
            return self._observe(terminated=True)
        if not said.strip():
            self._silences += 1
            if self._silences >= MAX_SILENCES:
                self._reason = "no reply arrived"
            return self._observe(terminated=bool(self._reason), truncated=False)
        self._silences = 0
        self._steps += 1
        ended = self._answer(read_action(said))
        over = self._steps >= self.max_steps
        return self._observe(terminated=ended or bool(self._reason), truncated=over and not ended)

    def _answer(self, action: Action) -> bool:
        """Carry out an action and append what came of it; returns whether the agent is done."""
        self._messages.append(action.message)
        if action.fault is not None:
            self._faults += 1
            self._signal = -1.0
            self._note_hint(self._steps - 1, f"Error: {action.fault}.")
            self._messages += tool_results(action, [f"Error: {action.fault}."])
            return self._faults >= MAX_FAULTS
        effect = self._guarded(partial(self.act, action))
        if effect is None:
            return True
        self._signal = effect.signal
        self._note_hint(self._steps - 1, effect.hint)
        if action.calls or action.message.get("tool_calls"):
            self._messages += tool_results(action, effect.results)
        elif effect.results:
            self._messages.append({"role": "user", "content": "\n".join(effect.results)})
        if effect.parts:
            self._messages.append({"role": "user", "content": effect.parts})
        return effect.ended

    def _guarded(self, work: Callable[[], V]) -> V | None:
        """Run `work` and return its result; `None`, with the reason kept, when the world broke."""
        try:
            return work()
        except WorldBroken as error:
            self._reason = str(error) or "the world broke"
        except Exception as error:  # else the whole pool would be lost with it
            logger.exception("An episode of %s is dropped.", type(self).__name__)
            self._reason = f"{type(error).__name__}: {error}"
        return None

    def _graded(self) -> float:
        outcome = float(self.evaluate())
        if not math.isfinite(outcome):  # bounds would make a 1 of it
            raise WorldBroken(f"the outcome is {outcome}, no finite number")
        for step, words in self.advise().items() if outcome < 1 else ():
            self._note_hint(step, words)
        return max(-1.0, min(1.0, outcome))

    def _note_hint(self, step: int, words: str | None) -> None:
        if words and (hint := clean_checker_words(words)):
            self._hints.setdefault(step, []).append(hint)

    def _leave(self) -> None:
        if self._open:
            self._open = False
            try:
                self.finish()
            except Exception:  # the next episode must go on
                logger.exception("A world of %s could not be closed.", type(self).__name__)

    def _observe(self, *, terminated: bool | None = None, truncated: bool = False) -> TensorDictBase:
        stepped = terminated is not None
        ended = bool(terminated) or truncated
        outcome = math.nan
        if ended and not self._reason:
            graded = self._guarded(self._graded)
            outcome = math.nan if graded is None else graded
        content: dict[str, Any] = {
            "message": _world_text(self._messages),
            "conversation": json.dumps(self._messages, ensure_ascii=False),
            "tools": json.dumps(self._tools, ensure_ascii=False),
            "task_id": self.task.id,
            "session_id": self.session_id,
            "reason": self._reason,
            "hints": json.dumps(self._hints if ended else {}, ensure_ascii=False),
            "step": torch.tensor([self._steps]),
            "faults": torch.tensor([self._faults]),
            "signal": torch.tensor([math.nan if self._signal is None else float(self._signal)]),
            "outcome": torch.tensor([outcome]),
            "dropped": torch.tensor([bool(self._reason)]),
            "done": torch.tensor([ended]),
            "terminated": torch.tensor([bool(terminated)]),
            "truncated": torch.tensor([truncated]),
            **self.observe_more(),
        }
        if stepped:
            content["reward"] = torch.tensor([outcome if ended else 0.0])
        if ended:
            self._leave()
        self._last = TensorDict(content, batch_size=(), device=self.device)
        return self._last.clone()


def _world_text(messages: Sequence[Json]) -> str:
    """The text of the last message that the world sent."""
    return next((text_of(message) for message in reversed(messages) if message["role"] != "assistant"), "")
