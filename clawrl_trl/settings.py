"""Settings of the serving half: engine, gateway and judge.

One flat dataclass is the single place where a setting has its name, default, help and, where the reference
system's users know one, its environment variable. `clawrl serve` and `examples/train.py` show the same flags;
every child process reads the resolved values from `config.json` in the run folder. API keys are never written
there: they stay in the environment.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError

ENVIRONMENT = {
    "model_name_or_path": ("MODEL_PATH",),
    "host": ("HOST",),
    "port": ("PORT",),
    "run": ("CLAWRL_RUN",),
    "judge_url": ("PRM_URL",),
    "judge_model": ("JUDGE_MODEL_PATH", "PRM_MODEL_PATH"),
    "judge_votes": ("PRM_M", "MAJORITY_VOTE_N"),
    "judge_majority": ("MAJORITY_VOTE_THRESHOLD",),
    "judge_workers": ("NUM_JUDGE_WORKERS",),
}
"""Environment variables that stand in for a setting's default, first one set wins."""

KEY_ENVIRONMENT = {
    "chat": ("CLAWRL_API_KEY", "SGLANG_API_KEY", "OPENCLAW_API_KEY"),
    "feedback": ("CLAWRL_FEEDBACK_KEY",),
    "admin": ("CLAWRL_ADMIN_KEY",),
}
"""Where the bearer key of each scope is looked up."""

DEFAULT_RUN = "runs/live"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def _from_environment(name: str, default: Any) -> Any:
    for variable in ENVIRONMENT.get(name, ()):
        value = os.environ.get(variable)
        if value:
            try:
                return type(default)(value) if default is not None else value
            except ValueError as error:
                raise UserError(f"{variable}={value!r} is not a valid {name}: {error}") from None
    return default


def _setting(name: str, default: Any, help: str) -> Any:
    if name not in ENVIRONMENT:  # argument parsers read a plain default, and take a flag without one for false
        return field(default=default, metadata={"help": help})
    return field(default_factory=lambda: _from_environment(name, default), metadata={"help": help})


@dataclass(kw_only=True)
class ServingArguments:
    """What serving is told beside the run folder and the model, which a training script names its own way."""

    host: str = _setting("host", "127.0.0.1", "Address the gateway binds. Anything but loopback needs CLAWRL_API_KEY.")
    port: int = _setting("port", 30000, "Port of the gateway; 0 picks a free one.")
    engine: str = _setting(
        "engine", "transformers", "Engine: 'transformers' (embedded), 'vllm', or the URL of a running vLLM."
    )
    served_model_name: str = _setting(
        "served_model_name", "clawrl", "Model name under which clients reach the newest serving policy."
    )
    max_model_len: int = _setting("max_model_len", 4096, "Longest prompt plus completion, in tokens.")
    max_running: int = _setting("max_running", 32, "Requests the embedded engine decodes at once.")
    max_waiting: int = _setting("max_waiting", 256, "Requests that may wait; one more is answered 429.")
    max_body_mb: int = _setting("max_body_mb", 32, "Largest request body the gateway reads, in MiB.")
    keep_policies: int = _setting("keep_policies", 4, "Retired policies kept loaded and reachable by name.")
    session_timeout: float = _setting(
        "session_timeout", 3600.0, "Seconds of silence after which a session's last turn expires unscored."
    )
    engine_timeout: float = _setting("engine_timeout", 600.0, "Longest wait for the engine's next byte, seconds.")
    judge: str = _setting("judge", "rules", "Judge: 'rules' (no model), 'llm', or 'off'.")
    judge_url: str | None = _setting("judge_url", None, "OpenAI-compatible URL of the llm judge. Default: the engine.")
    judge_model: str | None = _setting(
        "judge_model", None, "Model of the llm judge. Default: the engine's base model."
    )
    judge_votes: int = _setting("judge_votes", 3, "Votes the llm judge takes per turn.")
    judge_majority: float = _setting(
        "judge_majority",
        0.5,
        "Share of the valid votes that the plurality must exceed, else the judge abstains.",
    )
    judge_workers: int = _setting("judge_workers", 4, "Turns judged at once.")
    judge_temperature: float = _setting("judge_temperature", 0.6, "Sampling temperature of the llm judge.")
    judge_max_tokens: int = _setting("judge_max_tokens", 1024, "Longest vote of the llm judge, in tokens.")
    judge_timeout: float = _setting("judge_timeout", 60.0, "Longest wait for one vote or teacher call, seconds.")
    hints: bool = _setting("hints", True, "Write hindsight hints and score replies under them (needed for OPD).")
    custom_rm_path: str | None = _setting(
        "custom_rm_path",
        None,
        "Own reward, 'file.py:name' or 'package.module:name', instead of the judge's score.",
    )
    ledger_url: str | None = _setting(
        "ledger_url", None, "Database URL of the ledger. Default: ledger.db (SQLite) in the run folder."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port} is no port number: use 0 (any free port) to 65535.")
        if self.judge not in ("rules", "llm", "off"):
            raise UserError(f"--judge {self.judge!r} is unknown: use rules, llm or off.")
        if self.engine not in ("transformers", "vllm") and not self.engine.startswith(("http://", "https://")):
            raise UserError(f"--engine {self.engine!r} is unknown: use transformers, vllm or an http:// URL.")


@dataclass(kw_only=True)
class ServeSettings(ServingArguments):
    """Settings of `clawrl serve`: the engine, the gateway and the judge of one run folder."""

    run: str = _setting("run", DEFAULT_RUN, "Run folder: ledger, policies, logs and the resolved settings.")
    model_name_or_path: str | None = _setting(
        "model_name_or_path",
        None,
        "Causal language model to serve: folder or hub id. Default: the bundled model.",
    )
    dtype: str = _setting("dtype", "float32", "Computing type of the embedded engine: float32 or bfloat16.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"--dtype {self.dtype!r} is unknown: use float32 or bfloat16.")

    def save(self) -> None:
        """Write the resolved settings to `config.json` in the run folder, atomically."""
        path = Path(self.run) / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, run: str | Path) -> "ServeSettings":
        """Read the settings of a run folder.

        Raises:
            UserError: If the folder holds no readable `config.json`.
        """
        path = Path(run) / "config.json"
        try:
            values: Mapping[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} can't be read ({error}): start it with 'clawrl serve --run {run}'.") from None
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known} | {"run": str(run)})


def api_key(scope: str) -> str | None:
    """The bearer key of a scope (`chat`, `feedback`, `admin`) from the environment, or `None`."""
    for variable in KEY_ENVIRONMENT[scope]:
        value = os.environ.get(variable)
        if value:
            return value
    return None
