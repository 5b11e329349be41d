"""The target of an examination: an engine, the model behind it, the settings it is to run under.

A check reads what it needs from here and nowhere else. What can't be had (no engine answers, the model is not on
this machine, it does not fit) is a `Skip` with the reason, so a check asks for what it needs and never tests for it.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clawrl_trl.config.serving import DEFAULT_CONTEXT, LOOPBACK_HOSTS, ServeSettings
from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.doctor.replies import request_chat, request_json
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.engines.launch import model_path
from clawrl_trl.engines.precision import resolve_dtype
from clawrl_trl.engines.vllm.server import is_cpu_build
from clawrl_trl.gateway.capture import Choice
from clawrl_trl.messages import Json
from clawrl_trl.policy_names import BASE_MODEL
from clawrl_trl.run import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Target:
    """One engine and one model under one set of settings.

    Args:
        settings: Those of `clawrl serve`.
        client: Client of the engine; `None` when none answers.
        model_card: The engine's entry for its base model on `/v1/models`; empty before `connect`.
    """

    settings: ServeSettings
    client: EngineClient | None = None
    model_card: Json = field(default_factory=dict)
    _replies: dict[str, Choice] = field(default_factory=dict)

    @property
    def is_remote(self) -> bool:
        """True if the engine is somebody else's: reached by a URL, not started for the run."""
        return self.settings.is_remote

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.settings.run)

    @property
    def engine(self) -> EngineClient:
        """The engine's client.

        Raises:
            Skip: If no engine answers.
        """
        if self.client is None:
            raise Skip("no engine answers")
        return self.client

    @property
    def base(self) -> str:
        """The engine's name for the model without an adapter."""
        return str(self.model_card.get("id") or BASE_MODEL)

    @property
    def model(self) -> str:
        """Folder or hub id of the model that serves, as the trainer would load it.

        The folder that the engine names counts, since a whole model may have taken the first one's place.

        Raises:
            Skip: If a remote engine serves a model that nobody named and this machine does not hold.
        """
        root = str(self.model_card.get("root") or "")
        if root and Path(root).is_dir() and not (self.is_remote and self.settings.model_name_or_path):
            return root
        if not self.is_remote or self.settings.model_name_or_path:
            return model_path(self.settings)
        raise Skip("the engine's model is not on this machine: name it with --model_name_or_path")

    @property
    def context(self) -> int:
        """Longest prompt plus completion, in tokens: what the engine says, else what it would be asked for."""
        return int(self.model_card.get("max_model_len") or self.settings.max_model_len or DEFAULT_CONTEXT)

    @cached_property
    def shape(self) -> Shape:
        """The model's dimensions.

        Raises:
            Skip: If its config can't be read.
        """
        try:
            return Shape.of(self.model)
        except (OSError, ValueError, AttributeError) as error:
            raise Skip(f"the model's dimensions can't be read ({_first_line(error)})") from None

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer.

        Raises:
            Skip: If there is none.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.model)
        except (OSError, ValueError) as error:
            raise Skip(f"the model's tokenizer can't be read ({_first_line(error)})") from None

    @cached_property
    def reference(self) -> Reference:
        """The model as the trainer computes with it.

        Raises:
            Skip: If it can't be loaded here.
        """
        return Reference.load(self.model, self.shape)

    @property
    def is_coarse(self) -> bool:
        """True if the engine computes in bfloat16 (or something unknown), so that log-probs agree to rounding only."""
        if self.settings.engine == "transformers":
            return resolve_dtype(self.settings.dtype) != "float32"
        wide = self.settings.vllm_dtype == "float32" or (self.settings.vllm_dtype == "auto" and is_cpu_build())
        return self.is_remote or not wide

    async def request_reply(self, body: Json, *, stream: bool = False) -> Choice:
        """Return the base model's reply to a chat request, cut to what the engine's context holds; requested once.

        Raises:
            Skip: If no engine answers.
            EngineError: If the engine refuses.
        """
        longest = self.context // 4
        request = {"model": self.base, **body, "max_tokens": min(body["max_tokens"], longest)}
        key = repr((sorted(request.items()), stream))
        if key not in self._replies:
            self._replies[key] = await request_chat(self.engine, request, stream=stream)
        return self._replies[key]

    async def connect(self) -> Finding:
        """Read what the engine serves; without an answer the target has no engine from here on."""
        name = self.settings.engine if self.is_remote else f"--engine {self.settings.engine}"
        try:
            reply = await request_json(self.engine, "GET", "/v1/models")
            # vLLM lists adapters beside their base model, which is their `parent`.
            cards = [card for card in reply["data"] if not card.get("parent")]
            self.model_card = next((card for card in cards if card["id"] == BASE_MODEL), cards[0])
        except EngineError as error:
            self.client = None
            return Finding("answers", "fail", f"{name}: {error.message}", _remedy(error))
        except (KeyError, IndexError, TypeError):
            self.client = None
            fix = "name the base URL of a vLLM server, such as http://127.0.0.1:8000"
            return Finding("answers", "fail", f"{name} answers, but lists no models", fix)
        return Finding("answers", "ok", f"{name} serves {self.model_card.get('root') or self.base} as {self.base!r}")

    @property
    def shares_files(self) -> bool:
        """True if the engine runs on this machine and can read its folders."""
        return not self.is_remote or urlsplit(self.settings.engine).hostname in LOOPBACK_HOSTS


def _remedy(error: EngineError) -> str:
    if error.status in (401, 403):
        return "set CLAWRL_ENGINE_KEY to the key that the engine was started with"
    return "start the engine, or correct --engine"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
