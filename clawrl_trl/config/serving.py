"""Settings of the serving half: engine, gateway and judge.

One flat dataclass is the single place where a setting has its name, default, help and, where the reference
system's users know one, its environment variable. `clawrl serve` and `examples/train.py` show the same flags;
every child process reads the resolved values from `settings.json` in the run folder. API keys and the password of a
ledger's URL are never written there: they stay in the environment.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from clawrl_trl.config.flags import check_ranges
from clawrl_trl.errors import UserError
from clawrl_trl.ledger.database_url import LEDGER_URL, with_known_password, without_password
from clawrl_trl.plugins import JUDGES, plugin_names
from clawrl_trl.policy_names import BASE_MODEL, parse_policy_name
from clawrl_trl.run import make_private, write_private

FILE_NAME = "settings.json"
OLD_FILE_NAME = "config.json"
"""Where settings lay before; a whole model that is trained puts its own config there."""

ENVIRONMENT = {
    "model_name_or_path": ("MODEL_PATH",),
    "host": ("HOST",),
    "port": ("PORT",),
    "run": ("CLAWRL_RUN",),
    "ledger_url": (LEDGER_URL,),
    "judge_url": ("PRM_URL",),
    "judge_model": ("JUDGE_MODEL_PATH", "PRM_MODEL_PATH"),
    "judge_votes": ("PRM_M", "MAJORITY_VOTE_N"),
    "judge_majority": ("MAJORITY_VOTE_THRESHOLD",),
    "judge_workers": ("NUM_JUDGE_WORKERS",),
    "actor_gpus": ("ACTOR_GPUS",),
    "rollout_gpus": ("ROLLOUT_GPUS",),
    "prm_gpus": ("PRM_GPUS",),
}
"""Environment variables that stand in for a setting's default, first one set wins."""

KEY_ENVIRONMENT = {
    "chat": ("CLAWRL_API_KEY", "SGLANG_API_KEY", "OPENCLAW_API_KEY"),
    "feedback": ("CLAWRL_FEEDBACK_KEY",),
    "admin": ("CLAWRL_ADMIN_KEY",),
}
"""Where the bearer key of each scope is looked up."""

DEFAULT_RUN = "runs/live"
JUDGES_OF_OURS = ("rules", "llm")
HINT_CHOICES = ("gap", "overlap")
BUNDLED_TEMPERATURE = 0.9
"""Sampling temperature of the bundled model: at 1 one plain solution in seventy goes wrong on a word that the model
itself finds next to impossible, at 0.9 one in two hundred."""
DEFAULT_CONTEXT = 32_768
"""Longest context served unless more is asked for, in tokens: agents' requests have 7,000 to 30,000."""
AGENT_CONTEXT = 16_384
"""Tokens below which an agent such as OpenClaw runs out of context: its prompt and tools take 7,000 to 13,000."""
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
VLLM_DTYPES = ("auto", "bfloat16", "float16", "float32")
AT_LEAST = {
    "max_model_len": 1,
    "max_running": 1,
    "max_waiting": 0,
    "max_body_mb": 1,
    "keep_policies": 0,
    "engine_patience": 0,
    "hang_timeout": 0,
    "max_staleness": 0,
    "judge_votes": 1,
    "judge_workers": 1,
    "judge_max_tokens": 1,
    "judge_majority": 0,
    "judge_temperature": 0,
}
"""Smallest usable values of settings."""
ABOVE_ZERO = ("session_timeout", "engine_timeout", "judge_timeout")
AT_MOST = {"judge_majority": 1, "judge_temperature": 2}
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def _read_environment(name: str, default: Any) -> Any:
    for variable in ENVIRONMENT.get(name, ()):
        value = os.environ.get(variable)
        if value:
            try:
                return type(default)(value) if default is not None else value
            except ValueError as error:
                raise UserError(f"{variable}={value!r} is not a valid {name}: {error}") from None
    return default


def _declare(name: str, default: Any, help: str) -> Any:
    if name not in ENVIRONMENT:  # argument parsers read a plain default, and take a flag without one for false
        return field(default=default, metadata={"help": help})
    return field(default_factory=lambda: _read_environment(name, default), metadata={"help": help})


@dataclass(kw_only=True)
class ServingArguments:
    """Settings of serving, without the run folder and the model, which a training script names its own way."""

    host: str = _declare("host", "127.0.0.1", "Address the gateway binds. Anything but loopback needs CLAWRL_API_KEY.")
    port: int = _declare("port", 30000, "Port of the gateway; 0 picks a free one.")
    engine: str = _declare(
        "engine", "transformers", "Engine: 'transformers' (embedded), 'vllm', or the URL of a running vLLM."
    )
    served_model_name: str = _declare(
        "served_model_name",
        "clawrl",
        "Model name under which clients reach the newest serving policy; several with commas between them.",
    )
    any_model_name: bool = _declare(
        "any_model_name", False, "Serve the newest policy under every unknown model name too: agents insist on theirs."
    )
    max_model_len: int | None = _declare(
        "max_model_len",
        None,
        "Longest prompt plus completion, in tokens. Default: what the model and the memory allow, 32,768 at most.",
    )
    max_running: int = _declare("max_running", 32, "Requests the engine decodes at once.")
    max_waiting: int = _declare("max_waiting", 256, "Requests that may wait; one more is answered 429.")
    max_body_mb: int = _declare("max_body_mb", 32, "Largest request body the gateway reads, in MiB.")
    allowed_origins: str | None = _declare(
        "allowed_origins",
        None,
        "Origins of web pages that may use the gateway without a key, with commas, as in http://localhost:3000. "
        "Default: the gateway's own alone.",
    )
    allowed_media_domains: str | None = _declare(
        "allowed_media_domains",
        None,
        "Domains that the engine may fetch images and other media from, with commas between them. Default: none, "
        "media come with the request (data: URLs).",
    )
    keep_policies: int = _declare("keep_policies", 4, "Retired policies kept loaded and reachable by name.")
    session_timeout: float = _declare(
        "session_timeout", 3600.0, "Seconds of silence after which a session's last turn expires unscored."
    )
    engine_timeout: float = _declare("engine_timeout", 600.0, "Longest wait for the engine's next byte, seconds.")
    engine_patience: float | None = _declare(
        "engine_patience",
        None,
        "Seconds that a request waits for an engine that is being started again, before it is answered 503. Default: "
        "30, and 180 for a vLLM, which takes longer to start.",
    )
    hang_timeout: float = _declare(
        "hang_timeout", 90.0, "Seconds without an answer after which engine or gateway is started again; 0 for never."
    )
    vllm_data_parallel_size: int | None = _declare(
        "vllm_data_parallel_size", None, "Copies of the model. Default: as many as ROLLOUT_GPUS has room for, else 1."
    )
    vllm_max_lora_rank: int | None = _declare(
        "vllm_max_lora_rank",
        None,
        "Largest rank of the adapters to be served, 0 for none. Default: the trainer's, else that of the run's "
        "policies, else 32.",
    )
    vllm_dtype: str = _declare(
        "vllm_dtype", "auto", "Computing type of vLLM; auto: the model's own on a GPU, float32 on a CPU."
    )
    vllm_args: str | None = _declare("vllm_args", None, "Further flags for vLLM's server, in one string.")
    actor_gpus: int = _declare("actor_gpus", 0, "GPUs that train. 0: trainer and engine share what is visible.")
    rollout_gpus: int = _declare("rollout_gpus", 0, "GPUs for vLLM alone, taken after the trainer's.")
    prm_gpus: int = _declare(
        "prm_gpus", 0, "GPUs for a vLLM server of the llm judge's own (its model: --judge_model), taken last."
    )
    owner_names: str | None = _declare(
        "owner_names",
        None,
        "Names or ids under which the owner writes where a client names senders, separated by commas. Default: a "
        "conversation's first sender; nobody in a group chat, nor beside messages without a name.",
    )
    judge: str = _declare(
        "judge",
        "rules",
        "Judge: 'rules' (no model), 'llm', 'off', or the name of one that an installed package adds.",
    )
    judge_url: str | None = _declare("judge_url", None, "OpenAI-compatible URL of the llm judge. Default: the engine.")
    judge_model: str | None = _declare(
        "judge_model", None, "Model of the llm judge. Default: the engine's base model."
    )
    judge_votes: int = _declare("judge_votes", 3, "Votes the llm judge takes per turn.")
    judge_majority: float = _declare(
        "judge_majority",
        0.5,
        "Share of the valid votes that suffices: 3 of 5 decide at 0.6. Below it, and at a tie, the judge abstains.",
    )
    judge_workers: int = _declare("judge_workers", 4, "Turns judged at once.")
    judge_temperature: float = _declare("judge_temperature", 0.6, "Sampling temperature of the llm judge.")
    judge_max_tokens: int = _declare("judge_max_tokens", 1024, "Longest vote of the llm judge, in tokens.")
    judge_timeout: float = _declare("judge_timeout", 60.0, "Longest wait for one vote or teacher call, seconds.")
    hints: bool = _declare("hints", True, "Write hindsight hints and score replies under them (needed for OPD).")
    hint_any_score: bool = _declare(
        "hint_any_score",
        False,
        "Write hints also where the owner approves or is undecided ('Great, but shorter next time'), not only "
        "where the owner objects.",
    )
    hint_choice: str = _declare(
        "hint_choice",
        "gap",
        "Which of several hints is used: 'gap' (it moves the teacher most) or 'overlap' (its teacher shares most "
        "with the policy's 4 most likely tokens).",
    )
    teacher_top_k: int = _declare(
        "teacher_top_k",
        0,
        "Most likely tokens of the policy that the teacher scores at each position, beside the sampled one (0: none). "
        "A trainer's --opd_top_k sets it too.",
    )
    custom_rm_path: str | None = _declare(
        "custom_rm_path",
        None,
        "Own reward, 'file.py:name' or 'package.module:name', instead of the judge's score: reward(turn), or "
        "score(prompt, response, next_state).",
    )
    ledger_url: str | None = _declare(
        "ledger_url",
        None,
        "Database URL of the ledger; one with a password belongs into CLAWRL_LEDGER_URL. Default: ledger.db (SQLite) "
        "in the run folder.",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port} is no port number: use 0 (any free port) to 65535.")
        if self.judge not in (*JUDGES_OF_OURS, "off") and self.judge not in (added := plugin_names(JUDGES)):
            names = ", ".join([*JUDGES_OF_OURS, *added])
            raise UserError(f"--judge {self.judge!r} is unknown: use {names} or off.")
        if not 0 <= self.teacher_top_k <= 128:
            raise UserError(f"--teacher_top_k {self.teacher_top_k} is out of range: use 0 to 128.")
        if self.hint_choice not in HINT_CHOICES:
            raise UserError(f"--hint_choice {self.hint_choice!r} is unknown: use {' or '.join(HINT_CHOICES)}.")
        if self.engine not in ("transformers", "vllm") and not self.engine.startswith(("http://", "https://")):
            raise UserError(f"--engine {self.engine!r} is unknown: use transformers, vllm or an http:// URL.")
        # A URL of settings.json has no password: it is in the environment alone.
        self.ledger_url = with_known_password(self.ledger_url)
        reserved = [name for name in self.model_names if name == BASE_MODEL or parse_policy_name(name) is not None]
        if reserved or not self.model_names:
            wrong = f"{', '.join(reserved)} has a meaning of its own" if reserved else "there is no name"
            raise UserError(
                f"--served_model_name {self.served_model_name!r}: {wrong}, use others, such as clawrl,gpt-4o."
            )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/?#@*\s]+", origin):
                raise UserError(f"--allowed_origins: {origin!r} is no origin: write one as in http://localhost:3000.")
        if strange := [name for name in self.media_domains if not _DOMAIN.fullmatch(name)]:
            raise UserError(f"--allowed_media_domains: {strange[0]!r} is no domain: write it as in example.org.")
        if self.vllm_dtype not in VLLM_DTYPES:
            raise UserError(f"--vllm_dtype {self.vllm_dtype!r} is unknown: use {', '.join(VLLM_DTYPES)}.")
        check_ranges(vars(self), AT_LEAST, AT_MOST, ABOVE_ZERO)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names under which clients reach the newest serving policy, the one we tell people first."""
        names = (name.strip() for name in self.served_model_name.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def origins(self) -> tuple[str, ...]:
        """`allowed_origins`, one by one."""
        listed = (origin.strip().rstrip("/") for origin in (self.allowed_origins or "").split(","))
        return tuple(origin for origin in listed if origin)

    @property
    def media_domains(self) -> frozenset[str]:
        """The domains of `allowed_media_domains`, in lower case."""
        names = (self.allowed_media_domains or "").split(",")
        return frozenset(name.strip().lower() for name in names if name.strip())


@dataclass(kw_only=True)
class ServeSettings(ServingArguments):
    """Settings of `clawrl serve`: the engine, the gateway and the judge of one run folder.

    What it adds to `ServingArguments` a training script has already, in the arguments of its trainer and its model.
    """

    run: str = _declare("run", DEFAULT_RUN, "Run folder: ledger, policies, logs and the resolved settings.")
    model_name_or_path: str | None = _declare(
        "model_name_or_path",
        None,
        "Causal language model to serve: folder or hub id. Default: the bundled model.",
    )
    temperature: float | None = _declare(
        "temperature",
        None,
        "Sampling temperature of requests that set none. Default: 1, with the bundled model 0.9.",
    )
    dtype: str = _declare("dtype", "float32", "Computing type of the embedded engine: float32 or bfloat16.")
    max_staleness: int = _declare(
        "max_staleness",
        4,
        "Policy versions a sample may be behind; vLLM keeps room for as many adapters and two more.",
    )
    vllm_gpu_memory_utilization: float | None = _declare(
        "vllm_gpu_memory_utilization",
        None,
        "Share of a GPU's memory for vLLM. Default: 0.45 beside a trainer, 0.9 on devices of its own.",
    )
    vllm_tensor_parallel_size: int = _declare("vllm_tensor_parallel_size", 1, "GPUs that share one copy of the model.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"--dtype {self.dtype!r} is unknown: use float32 or bfloat16.")
        if self.temperature is not None and not 0 < self.temperature <= 2:
            raise UserError(f"--temperature {self.temperature} is out of range: use a value above 0, up to 2.")
        self._check_devices()

    @property
    def patience(self) -> float:
        """Seconds that a request waits for an engine that is being started again."""
        if self.engine_patience is not None:
            return self.engine_patience
        return 30.0 if self.engine == "transformers" else 180.0

    @property
    def serves_bundled_model(self) -> bool:
        """True if the engine is ours and has the model that comes with the package."""
        return self.model_name_or_path is None and self.engine in ("transformers", "vllm")

    @property
    def served_temperature(self) -> float:
        """The temperature of requests that set none."""
        if self.temperature is not None:
            return self.temperature
        return BUNDLED_TEMPERATURE if self.model_name_or_path is None else 1.0

    def _check_devices(self) -> None:
        share = self.vllm_gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise UserError(f"--vllm_gpu_memory_utilization {share} is no share: use a value above 0, up to 1.")
        split, copies = self.vllm_tensor_parallel_size, self.vllm_data_parallel_size or 1
        counts = (self.actor_gpus, self.rollout_gpus, self.prm_gpus, self.vllm_max_lora_rank or 0)
        if split < 1 or copies < 1 or min(counts) < 0:
            raise UserError("Counts of GPUs, --vllm_*_parallel_size and --vllm_max_lora_rank can't be negative.")
        if self.rollout_gpus and split * copies > self.rollout_gpus:
            raise UserError(
                f"--vllm_tensor_parallel_size {split} times --vllm_data_parallel_size {copies} is more than "
                f"ROLLOUT_GPUS={self.rollout_gpus}: lower them or give the engine more devices."
            )

    def save(self) -> None:
        """Write the resolved settings, without passwords, to `settings.json` in the run folder, atomically."""
        folder = Path(self.run)
        make_private(folder)
        values = asdict(self) | {"ledger_url": without_password(self.ledger_url)}
        write_private(folder / FILE_NAME, json.dumps(values, indent=2) + "\n")
        with suppress(OSError, ValueError):
            if _read(folder / OLD_FILE_NAME) is not None:
                (folder / OLD_FILE_NAME).unlink()  # it may hold a password

    @classmethod
    def load(cls, run: str | Path) -> "ServeSettings":
        """Read the settings of a run folder.

        Raises:
            UserError: If the folder holds no readable `settings.json`, nor the `config.json` of an earlier version.
        """
        values = _read_stored(run)
        if values is None:
            raise UserError(f"{Path(run) / FILE_NAME} does not exist: start it with 'clawrl serve --run {run}'.")
        # A file of another version may hold settings that this one doesn't have.
        names = {setting.name for setting in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names} | {"run": str(run)})

    @classmethod
    def find(cls, run: str | Path) -> "ServeSettings | None":
        """Read the settings of a run folder, if it holds any.

        Raises:
            UserError: If they can't be read.
        """
        return None if _read_stored(run) is None else cls.load(run)


def _read_stored(run: str | Path) -> Mapping[str, Any] | None:
    """Read the values that a run folder holds, `None` if there are none.

    Raises:
        UserError: If they can't be read.
    """
    path = Path(run) / FILE_NAME
    try:
        return _read(path) if path.exists() else _read(path.with_name(OLD_FILE_NAME))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read ({error}): start it with 'clawrl serve --run {run}'.") from None


def _read(path: Path) -> Mapping[str, Any] | None:
    """Read the settings in a file; `None` if there is no file, or a model's config in it."""
    try:
        values: Any = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return values if isinstance(values, dict) and "served_model_name" in values else None


def api_key(scope: str) -> str | None:
    """Return the bearer key of a scope (`chat`, `feedback`, `admin`) from the environment, or `None`."""
    for variable in KEY_ENVIRONMENT[scope]:
        value = os.environ.get(variable)
        if value:
            return value
    return None


def client_key(scope: str) -> str | None:
    """Return the key of a scope that our own clients present: the first, where several are set with commas."""
    keys = [key.strip() for key in (api_key(scope) or "").split(",") if key.strip()]
    return keys[0] if keys else None
