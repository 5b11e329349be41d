"""The target of an examination: an engine, the model behind it, the settings it is to run under.

A check reads what it needs from here and nowhere else. What can't be had (no engine answers, the model is not on
this machine, it does not fit) is a `Skip` with the reason, so a check asks for what it needs and never tests for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clawrl_trl.config.serving import DEFAULT_CONTEXT, LOOPBACK_HOSTS, ServeSettings
from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.memory import Shape
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.doctor.replies import call, chat
from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.engines.launch import model_path
from clawrl_trl.engines.vllm.server import on_cpu
from clawrl_trl.gateway.capture import Choice
from clawrl_trl.policy_names import BASE_MODEL
from clawrl_trl.run import RunFolder


@dataclass
class Target:
    """One engine and one model under one set of settings.

    Args:
        settings: What `clawrl serve` would be given.
        client: Client of the engine; `None` when none answers.
    """

    settings: ServeSettings
    client: EngineClient | None = None
    card: Mapping[str, Any] = field(default_factory=dict)
    _replies: dict[str, Choice] = field(default_factory=dict)

    @property
    def remote(self) -> bool:
        """True if the engine is somebody else's: reached by a URL, not started for the run."""
        return self.settings.engine.startswith(("http://", "https://"))

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
        return str(self.card.get("id") or BASE_MODEL)

    @property
    def model(self) -> str:
        """Folder or hub id of the model that serves, as the trainer would load it.

        The folder that the engine names counts, since a whole model may have taken the first one's place.

        Raises:
            Skip: If a remote engine serves a model that nobody named and this machine does not hold.
        """
        root = str(self.card.get("root") or "")
        if root and Path(root).is_dir() and not (self.remote and self.settings.model_name_or_path):
            return root
        if not self.remote or self.settings.model_name_or_path:
            return model_path(self.settings)
        raise Skip("the engine's model is not on this machine: name it with --model_name_or_path")

    @property
    def context(self) -> int:
        """Longest prompt plus completion, in tokens: what the engine says, else what it would be asked for."""
        return int(self.card.get("max_model_len") or self.settings.max_model_len or DEFAULT_CONTEXT)

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
    def tokenizer(self) -> Any:
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
    def coarse(self) -> bool:
        """True if the engine computes in bfloat16 (or something unknown), so that log-probs agree to rounding only."""
        if self.settings.engine == "transformers":
            return self.settings.dtype != "float32"
        wide = self.settings.vllm_dtype == "float32" or (self.settings.vllm_dtype == "auto" and on_cpu())
        return self.remote or not wide

    async def reply(self, body: Mapping[str, Any], *, stream: bool = False) -> Choice:
        """The base model's reply to a chat request, cut to what the engine's context holds; asked once.

        Raises:
            Skip: If no engine answers.
            EngineError: If the engine refuses.
        """
        longest = self.context // 4
        asked = {"model": self.base, **body, "max_tokens": min(body["max_tokens"], longest)}
        key = repr((sorted(asked.items()), stream))
        if key not in self._replies:
            self._replies[key] = await chat(self.engine, asked, stream=stream)
        return self._replies[key]

    async def meet(self) -> Finding:
        """Learn what the engine serves; without an answer there is no engine from here on."""
        where = self.settings.engine if self.remote else f"--engine {self.settings.engine}"
        try:
            reply = await call(self.engine, "GET", "/v1/models")
            cards = [one for one in reply["data"] if not one.get("parent")]
            self.card = next((one for one in cards if one["id"] == BASE_MODEL), cards[0])
        except EngineError as error:
            self.client = None
            return Finding("answers", "fail", f"{where}: {error.message}", _remedy(error))
        except (KeyError, IndexError, TypeError):
            self.client = None
            fix = "name the base URL of a vLLM server, such as http://127.0.0.1:8000"
            return Finding("answers", "fail", f"{where} answers, but lists no models", fix)
        return Finding("answers", "ok", f"{where} serves {self.card.get('root') or self.base} as {self.base!r}")

    @property
    def beside(self) -> bool:
        """True if the engine runs on this machine and can read its folders."""
        return not self.remote or urlsplit(self.settings.engine).hostname in LOOPBACK_HOSTS


def _remedy(error: EngineError) -> str:
    if error.status in (401, 403):
        return "set CLAWRL_ENGINE_KEY to the key that the engine was started with"
    return "start the engine, or correct --engine"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
