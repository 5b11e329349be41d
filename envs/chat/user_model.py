"""The language model behind a simulated user: one bounded request, one strictly read answer.

Any OpenAI-compatible server will do. An answer that isn't exactly what was asked for, and a request that fails, are
tried once more; after that the user is gone ([`clawrl_trl.envs.chat.personas.PersonaGone`]), and never half
understood.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import openai
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from clawrl_trl.envs.base.actor import TRANSPORT_ERRORS
from clawrl_trl.envs.chat.personas import Mood, PersonaGone
from clawrl_trl.envs.chat.user_prompt import RESPONSE_FORMAT

ATTEMPTS = 2
MAX_TEXT = 4000
"""Longest message of a user, characters."""
MAX_REASON = 300
ON_THE_SIDE = {"X-Turn-Type": "side"}
"""Where the model is behind a gateway of ours, nothing of what it says is trained."""
REFUSALS = frozenset({400, 415, 422, 501})
SAMPLING = {"temperature": 0.8, "max_tokens": 400}


class UserMessage(BaseModel):
    """The user's message as the model wrote it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT)]
    mood: Mood
    satisfied: bool


class UserModel:
    """A client of the server that speaks for a user. Safe to share between threads, and to send to processes.

    Args:
        model (`str`): The model's name there.
        base_url (`str`): The server's URL, as the `openai` client wants it.
        key (`str`, *optional*): Bearer key.
        sampling (`Mapping`, *optional*): Sampling parameters; with `None` for a value one is not sent.
        timeout (`float`, *optional*, defaults to `60.0`): Longest wait for the server's next byte, in seconds.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        key: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.model, self.base_url, self.timeout = model, base_url, timeout
        self.sampling = SAMPLING if sampling is None else dict(sampling)
        self._key = key
        self._structured = True
        self._client: openai.OpenAI | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections can't be sent to another process, which opens its own.
        return {**self.__dict__, "_client": None}

    def say(self, messages: Sequence[Mapping[str, str]], *, seed: int, satisfied: bool | None = None) -> UserMessage:
        """Ask for the user's next message.

        Args:
            messages (`Sequence[Mapping]`): See [`clawrl_trl.envs.chat.user_prompt.make_prompt`].
            seed (`int`): Seed of the sampling, where the server heeds one.
            satisfied (`bool`, *optional*): Whether the user is satisfied, where a style check knows; an answer
                that says otherwise doesn't count.

        Raises:
            PersonaGone: If there is no such answer.
        """
        reason = ""
        for attempt in range(ATTEMPTS):
            try:
                message = parse_answer(self._ask(list(messages), seed + attempt))
            except TRANSPORT_ERRORS as error:
                reason = f"the user's model failed: {type(error).__name__}: {error}"[:MAX_REASON]
                continue
            if message is None:
                reason = "the user's model did not answer with JSON of text, mood and satisfied"
            elif satisfied not in (None, message.satisfied):
                reason = f"the user's model would not play a user who is {'' if satisfied else 'not '}satisfied"
            else:
                return message
        raise PersonaGone(reason)

    def _ask(self, messages: list[Any], seed: int) -> str:
        if self._client is None:
            self._client = openai.OpenAI(
                base_url=self.base_url,
                api_key=self._key or "none",
                timeout=self.timeout,
                # `say` tries again itself, with another seed.
                max_retries=0,
                default_headers=ON_THE_SIDE,
            )
        parameters = {"seed": seed, **self.sampling}
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        body |= {name: value for name, value in parameters.items() if value is not None}
        create = self._client.chat.completions.create
        if self._structured:
            try:
                return read_completion_text(create(**body | {"response_format": RESPONSE_FORMAT}))
            except openai.APIStatusError as error:
                if error.status_code not in REFUSALS:
                    raise
        answer = read_completion_text(create(**body))
        self._structured = False  # not every server constrains its output
        return answer


def parse_answer(answer: str) -> UserMessage | None:
    """Read an answer: all of it, but for a thought before and a code fence around, is the JSON object."""
    text = re.sub(r"<think>.*?</think>", "", answer, flags=re.S).strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*?)\n?```", text, re.S)
    try:
        return UserMessage.model_validate_json(fenced[1] if fenced else text)
    except ValidationError:
        return None


def read_completion_text(completion: Any) -> str:
    """The text of a completion; of something else that a server sent, none."""
    try:
        return str(completion.choices[0].message.content or "")
    except (AttributeError, IndexError, TypeError):
        return ""
