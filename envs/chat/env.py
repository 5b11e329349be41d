"""The chat environment: a simulated user as a TorchRL world.

The world is the person: its problem, its taste, what it says next. An action is the assistant's reply as text;
who wrote it, a scripted policy or a model behind the gateway (`clawrl_trl.envs.base.actor.GatewayPolicy`), is
no business of the environment. It never raises on what a policy does: an empty action means that no reply
arrived, so the person sends the same message again, and the failure is counted. Nor does it raise when the person
can't go on ([`clawrl_trl.envs.chat.personas.PersonaGone`]): the episode is dropped, with the reason and with NaN for a
reward, so that it can't be trained on.

```python
env = ChatEnv("student", seed=0)
rollout = env.rollout(8, lambda td: td.set("action", "Tom has 5. He buys 7 more, so 5 + 7 = 12."))
rollout["next", "reward"]  # 1.0: plain sentences with the steps; the next message approves
```
"""

import json
import math
import random
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase

from clawrl_trl.envs.chat.persona_file import persona as persona_named
from clawrl_trl.envs.chat.personas import Persona, PersonaGone, PersonaTask
from clawrl_trl.envs.chat.problems import Split

MAX_SILENCES = 3
"""Replies in a row that may fail to arrive before a person gives up."""


class ChatEnv(EnvBase):  # type: ignore[misc]
    """A conversation with a simulated user about one problem.

    An episode is one session. The person asks, reads the reply, objects or approves in its next message, and
    reads the reply to that too. It ends (`terminated`) with the reply to an approval or to the last of
    `max_turns` messages, and early (`truncated`) when it is dropped, because replies stop arriving or the person can't
    go on.

    Observations: `message` (what the person says), `conversation` (all messages so far, JSON of the chat API's
    list, ending with that one), `session_id`, `mood` (how the person feels), `turn` (int64, messages the person has
    sent), `approved` (bool), `correct` (bool, the last reply is right in substance), `failed` (int64, replies that
    did not arrive), `dropped` (bool) and `reason` (why).
    Action: `action`, the reply. Reward: the person's style score of the reply, 0.0 or 1.0; a reply that
    merely acknowledges an approval is worth 0.0, and the step in which an episode is dropped NaN.

    Args:
        persona (`str` or [`Persona`]): Who is talking: `"student"`, `"teacher"`, a YAML file that describes
            one, an [`clawrl_trl.envs.LLMPersona`], or your own.
        seed (`int`, *optional*, defaults to `0`): Seeds problems and wordings. The n-th episode of a seed is
            always the same.
        split (`str`, *optional*, defaults to `"train"`): Which problems are asked.
        max_turns (`int`, *optional*, defaults to `3`): Most messages the person sends.
        first_episode (`int`, *optional*, defaults to `0`): Index of the episode that the first reset starts.
        think_time (`float`, *optional*, defaults to `0.0`): Mean seconds the person takes to read and answer
            (exponentially distributed).
        device (`torch.device`, *optional*): Where the flags live.

    Examples:
        >>> env = ChatEnv("teacher", seed=3, max_turns=2)
        >>> rollout = env.rollout(4, policy)  # policy(td) sets td["action"]
        >>> rollout["message"][0], rollout["next", "message"][0]
    """

    def __init__(
        self,
        persona: str | Persona,
        *,
        seed: int = 0,
        split: Split = "train",
        max_turns: int = 3,
        first_episode: int = 0,
        think_time: float = 0.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(device=device, batch_size=())
        self.persona = persona_named(persona) if isinstance(persona, str) else persona
        self.split = split
        self.max_turns = max_turns
        self.think_time = think_time
        self.next_episode = first_episode
        self.stopped = threading.Event()
        self._seed = seed
        self._tasks: Sequence[PersonaTask] = ()
        self._make_specs()

    def _make_specs(self) -> None:
        count = Unbounded(shape=(1,), dtype=torch.int64, device=self.device)
        flag = Categorical(2, shape=(1,), dtype=torch.bool, device=self.device)
        self.observation_spec = Composite(
            message=NonTensor(shape=(), example_data="Can you help me?", device=self.device),
            conversation=NonTensor(shape=(), example_data="[]", device=self.device),
            session_id=NonTensor(shape=(), example_data="student-0-0", device=self.device),
            mood=NonTensor(shape=(), example_data="patient", device=self.device),
            reason=NonTensor(shape=(), example_data="", device=self.device),
            turn=count.clone(),
            approved=flag.clone(),
            correct=flag.clone(),
            failed=count.clone(),
            dropped=flag.clone(),
        )
        self.action_spec = NonTensor(shape=(), example_data="The answer is 12.", device=self.device)
        self.reward_spec = Unbounded(shape=(1,), device=self.device)
        self.done_spec = Composite(done=flag.clone(), terminated=flag.clone(), truncated=flag.clone())

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed or 0
        self._tasks = ()
        self.next_episode = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        index = self.next_episode
        self.next_episode += 1
        self._rng = random.Random(f"{self.persona.name}-{self._seed}-{index}")
        self._pace = random.Random(f"pace-{self._seed}-{index}")
        self.task = self._task(index)
        self.session_id = f"{self.persona.name}-{self._seed}-{index}-{uuid.uuid4().hex[:8]}"
        self._messages: list[dict[str, str]] = []
        self._turn = self._failed = self._silences = 0
        self._approved = self._correct = False
        self._reason = ""
        self._person = self.persona.session()
        try:
            self._say(self._person.opening(self.task, self._rng))
        except PersonaGone as gone:
            self._reason = str(gone)
        self._mood = self._person.mood
        return self._observe(terminated=False, truncated=False)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reply = str(tensordict["action"])
        if self._reason:
            return self._drop(self._reason)
        if not reply.strip():
            return self._unheard()
        self._silences = 0
        self._messages.append({"role": "assistant", "content": reply})
        if self._approved:
            return self._observe(terminated=True, truncated=False, reward=0.0)
        try:
            return self._heard(reply)
        except PersonaGone as gone:
            return self._drop(str(gone))

    def _heard(self, reply: str) -> TensorDictBase:
        reward = self._person.style(self.task, reply).score
        self._correct = self._person.correct(self.task, reply)
        if self._turn >= self.max_turns:
            return self._observe(terminated=True, truncated=False, reward=reward)
        self._think()
        reaction = self._person.react(self.task, reply, self._turn, self._rng)
        self._approved, self._mood = reaction.satisfied, reaction.mood
        self._say(reaction.text)
        return self._observe(terminated=False, truncated=False, reward=reward)

    def _unheard(self) -> TensorDictBase:
        self._failed += 1
        self._silences += 1
        if self._silences >= MAX_SILENCES:
            return self._drop("no reply arrived")
        return self._observe(terminated=False, truncated=False, reward=0.0)

    def _drop(self, reason: str) -> TensorDictBase:
        self._reason = reason
        return self._observe(terminated=False, truncated=True, reward=math.nan)

    def _say(self, text: str) -> None:
        self._turn += 1
        self._messages.append({"role": "user", "content": text})

    def _think(self) -> None:
        if self.think_time > 0:
            self.stopped.wait(self._pace.expovariate(1.0 / self.think_time))

    def _task(self, index: int) -> PersonaTask:
        if index >= len(self._tasks):
            self._tasks = self.persona.tasks(self._seed, self.split, max(64, 2 * index))
        return self._tasks[index]

    def _observe(self, *, terminated: bool, truncated: bool, reward: float | None = None) -> TensorDictBase:
        said = next((one["content"] for one in reversed(self._messages) if one["role"] == "user"), "")
        content: dict[str, Any] = {
            "message": said,
            "conversation": json.dumps(self._messages, ensure_ascii=False),
            "session_id": self.session_id,
            "mood": self._mood,
            "reason": self._reason,
            "turn": torch.tensor([self._turn]),
            "approved": torch.tensor([self._approved]),
            "correct": torch.tensor([self._correct]),
            "failed": torch.tensor([self._failed]),
            "dropped": torch.tensor([bool(self._reason)]),
            "done": torch.tensor([terminated or truncated]),
            "terminated": torch.tensor([terminated]),
            "truncated": torch.tensor([truncated]),
        }
        if reward is not None:
            content["reward"] = torch.tensor([reward])
        return TensorDict(content, batch_size=(), device=self.device)
