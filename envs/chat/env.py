"""The chat environment: a simulated user as a TorchRL `EnvBase`.

The world is the person: its problem, its taste, its next message. An action is the assistant's reply as text, from
any policy (a scripted one, or a model behind the gateway: `clawrl_trl.envs.base.actor.GatewayPolicy`). The environment
never raises on what a policy does: an empty action means that no reply arrived, so the person sends the same message
again, and the failure is counted. Nor does it raise when the person can't go on
([`clawrl_trl.envs.chat.personas.PersonaGone`]): the episode is dropped, with the reason and with NaN as reward, which
can't be trained on.

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
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite
from torchrl.envs import EnvBase

from clawrl_trl.envs.base.specs import make_count_spec, make_flag_spec, make_text_spec, set_step_specs
from clawrl_trl.envs.chat.persona_file import persona as load_persona
from clawrl_trl.envs.chat.personas import Mood, Persona, PersonaGone, PersonaTask, RatingPersona, Thumbs
from clawrl_trl.envs.chat.problems import Split

MAX_SILENCES = 3
"""Replies in a row that may fail to arrive before a person gives up."""


@dataclass
class _ChatState:
    """State of one episode; each reset makes a new one.

    Attributes:
        person ([`Persona`]): The persona of this conversation.
        words (`random.Random`): Draws the person's words.
        messages (`list[dict]`): The conversation, chat API.
        turn (`int`): Messages the person has sent.
        failed (`int`): Replies that did not arrive; `silences` counts those in a row.
        thumbs (`int`, *optional*): The person's thumb for the last reply.
        drop_reason (`str`): Why the episode is dropped; empty while it counts.
    """

    person: Persona
    words: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    mood: Mood = "patient"
    turn: int = 0
    failed: int = 0
    silences: int = 0
    approved: bool = False
    correct: bool = False
    thumbs: Thumbs | None = None
    drop_reason: str = ""


class ChatEnv(EnvBase):  # type: ignore[misc]
    """A conversation with a simulated user about one problem.

    An episode is one session. The person asks, reads the reply, objects or approves in its next message, and
    reads the reply to that too. It ends (`terminated`) with the reply to an approval or to the last of
    `max_turns` messages, or when the person leaves without a word, and early (`truncated`) when it is dropped,
    because replies stop arriving or the person can't go on.

    TensorDict keys (batch size `()`; tensors have shape `(1,)`, texts are non-tensor strings):

    | key | type | content |
    |---|---|---|
    | `message` | text | the person's last message |
    | `conversation` | text | all messages so far, JSON of the chat API's list, ending with that one |
    | `session_id` | text | the episode's name, new with each reset |
    | `mood` | text | how the person feels, see [`clawrl_trl.envs.chat.personas.Mood`] |
    | `turn` | int64 | messages the person has sent |
    | `approved`, `correct` | bool | whether the last reply has the person's approval; is right in substance |
    | `thumbs` | int64 | the person's thumb for the last reply, 1 or -1; 0 for none |
    | `failed` | int64 | replies that did not arrive |
    | `dropped`, `reason` | bool, text | whether the episode is dropped, and why |
    | `action` (input) | text | the reply; empty: none arrived |
    | `reward` | float32 | the person's style score of the reply, 0 or 1; NaN in the step that drops the episode |
    | `done`, `terminated`, `truncated` | bool | the end, see above |

    A reply that merely acknowledges an approval is worth 0.

    Args:
        persona (`str` or [`Persona`]): The simulated user: the name of a scripted one, a YAML file that describes
            one, an [`clawrl_trl.envs.LLMPersona`], or your own.
        seed (`int`, *optional*, defaults to `0`): Seeds problems and wordings. The n-th episode of a seed is
            always the same.
        split (`str`, *optional*, defaults to `"train"`): Which problems are asked.
        max_turns (`int`, *optional*, defaults to `3`): Most messages the person sends.
        first_episode (`int`, *optional*, defaults to `0`): Index of the episode that the first reset starts.
        think_time (`float`, *optional*, defaults to `0.0`): Mean seconds the person takes to read and answer
            (exponentially distributed).
        device (`torch.device`, *optional*): Where the tensors live.

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
        self.persona = load_persona(persona) if isinstance(persona, str) else persona
        self.split = split
        self.max_turns = max_turns
        self.think_time = think_time
        self.next_episode = first_episode
        self.stopped = threading.Event()
        self._seed = seed
        self._tasks: Sequence[PersonaTask] = ()
        self._make_specs()

    def _make_specs(self) -> None:
        device = self.device
        self.observation_spec = Composite(
            message=make_text_spec(device, "Can you help me?"),
            conversation=make_text_spec(device, "[]"),
            session_id=make_text_spec(device, "student-0-0"),
            mood=make_text_spec(device, "patient"),
            reason=make_text_spec(device),
            turn=make_count_spec(device),
            approved=make_flag_spec(device),
            correct=make_flag_spec(device),
            thumbs=make_count_spec(device),
            failed=make_count_spec(device),
            dropped=make_flag_spec(device),
        )
        set_step_specs(self, "The answer is 12.")

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed or 0
        self._tasks = ()
        self.next_episode = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        index = self.next_episode
        self.next_episode += 1
        # Of its own, so that waiting draws nothing from the generator of the words.
        self._think_rng = random.Random(f"pace-{self._seed}-{index}")
        self.task = self._find_task(index)
        self.session_id = f"{self.persona.name}-{self._seed}-{index}-{uuid.uuid4().hex[:8]}"
        words = random.Random(f"{self.persona.name}-{self._seed}-{index}")
        self._chat = chat = _ChatState(self.persona.session(), words)
        try:
            self._send_message(chat.person.opening(self.task, chat.words))
        except PersonaGone as gone:
            chat.drop_reason = str(gone)
        chat.mood = chat.person.mood
        return self._observe(terminated=False, truncated=False)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chat, reply = self._chat, str(tensordict["action"])
        chat.thumbs = None
        if chat.drop_reason:  # there was no opening; TorchRL refuses a reset that is done
            return self._drop(chat.drop_reason)
        if not reply.strip():
            return self._count_silence()
        chat.silences = 0
        chat.messages.append({"role": "assistant", "content": reply})
        if chat.approved:
            return self._observe(terminated=True, truncated=False, reward=0.0)
        try:
            return self._react(reply)
        except PersonaGone as gone:
            return self._drop(str(gone))

    def _react(self, reply: str) -> TensorDictBase:
        chat = self._chat
        reward = chat.person.style(self.task, reply).score
        chat.correct = chat.person.correct(self.task, reply)
        if isinstance(chat.person, RatingPersona):
            chat.thumbs = chat.person.rate(self.task, reply, chat.words)
        if chat.turn >= self.max_turns:
            return self._observe(terminated=True, truncated=False, reward=reward)
        self._wait_think_time()
        reaction = chat.person.react(self.task, reply, chat.turn, chat.words)
        chat.approved, chat.mood = reaction.satisfied, reaction.mood
        if not reaction.text:
            return self._observe(terminated=True, truncated=False, reward=reward)
        self._send_message(reaction.text)
        return self._observe(terminated=False, truncated=False, reward=reward)

    def _count_silence(self) -> TensorDictBase:
        self._chat.failed += 1
        self._chat.silences += 1
        if self._chat.silences >= MAX_SILENCES:
            return self._drop("no reply arrived")
        return self._observe(terminated=False, truncated=False, reward=0.0)

    def _drop(self, reason: str) -> TensorDictBase:
        self._chat.drop_reason = reason
        return self._observe(terminated=False, truncated=True, reward=math.nan)

    def _send_message(self, text: str) -> None:
        self._chat.turn += 1
        self._chat.messages.append({"role": "user", "content": text})

    def _wait_think_time(self) -> None:
        if self.think_time > 0:
            self.stopped.wait(self._think_rng.expovariate(1.0 / self.think_time))

    def _find_task(self, index: int) -> PersonaTask:
        # A longer list of the same seed begins with the shorter one, so a task keeps its index.
        if index >= len(self._tasks):
            self._tasks = self.persona.tasks(self._seed, self.split, max(64, 2 * index))
        return self._tasks[index]

    def _observe(self, *, terminated: bool, truncated: bool, reward: float | None = None) -> TensorDictBase:
        chat = self._chat
        user_texts = [message["content"] for message in chat.messages if message["role"] == "user"]
        observation: dict[str, Any] = {
            "message": user_texts[-1] if user_texts else "",
            "conversation": json.dumps(chat.messages, ensure_ascii=False),
            "session_id": self.session_id,
            "mood": chat.mood,
            "reason": chat.drop_reason,
            "turn": torch.tensor([chat.turn]),
            "approved": torch.tensor([chat.approved]),
            "correct": torch.tensor([chat.correct]),
            "thumbs": torch.tensor([chat.thumbs or 0]),
            "failed": torch.tensor([chat.failed]),
            "dropped": torch.tensor([bool(chat.drop_reason)]),
            "done": torch.tensor([terminated or truncated]),
            "terminated": torch.tensor([terminated]),
            "truncated": torch.tensor([truncated]),
        }
        if reward is not None:
            observation["reward"] = torch.tensor([reward])
        return TensorDict(observation, batch_size=(), device=self.device)
