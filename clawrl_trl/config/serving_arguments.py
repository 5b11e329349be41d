"""Settings of serving that `clawrl serve` and a training script share: their names, defaults, help and environment.

One flat dataclass is the single place where a setting has its name, default, help and, where the reference
system's users know one, its environment variable.
"""

import os
import re
from dataclasses import dataclass, field
from typing import Any

from clawrl_trl.config.flags import check_ranges
from clawrl_trl.errors import UserError
from clawrl_trl.ledger.database_url import LEDGER_URL, add_known_password
from clawrl_trl.plugins import JUDGES, plugin_names
from clawrl_trl.policy_names import BASE_MODEL, parse_policy_name

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

JUDGES_OF_OURS = ("rules", "llm", "auto")
CHAT_JUDGE, PRACTICE_JUDGE = "auto", "rules"
"""Default judges of chats and of practice (`--env`), whose episodes have outcomes for scores."""
JUDGE_ENCODERS = ("all-MiniLM-L6-v2", "all-mpnet-base-v2", "Qwen2.5-Coder-1.5B-Instruct")
"""What the embedded judge can read with, from small to large, each beside those before it."""
BEST_ENCODER = "auto"
"""Stands for the best of them that suits the model and the machine."""
HINT_CHOICES = ("gap", "overlap")
# The hosts of addresses that are compared with it have these characters only: other forms would never match.
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
DTYPES = ("auto", "bfloat16", "float16", "float32")
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
    "praise_cap": 0,
    "judge_majority": 0,
    "judge_temperature": 0,
}
"""Smallest usable values of settings."""
ABOVE_ZERO = ("session_timeout", "engine_timeout", "judge_timeout")
AT_MOST = {"judge_majority": 1, "judge_temperature": 2}


def _read_environment(name: str, default: Any) -> Any:
    for variable in ENVIRONMENT.get(name, ()):
        value = os.environ.get(variable)
        if value:
            try:
                return type(default)(value) if default is not None else value
            except ValueError as error:
                raise UserError(f"{variable}={value!r} is not a valid {name}: {error}") from None
    return default


def declare(name: str, default: Any, help: str) -> Any:
    """Declare a field of a dataclass of settings, with its help and the environment variables for its default."""
    if name not in ENVIRONMENT:  # argument parsers read a plain default, and take a flag without one for false
        return field(default=default, metadata={"help": help})
    return field(default_factory=lambda: _read_environment(name, default), metadata={"help": help})


@dataclass(kw_only=True)
class ServingArguments:
    """Settings of serving, without the run folder and the model, which a training script names its own way."""

    host: str = declare("host", "127.0.0.1", "Address the gateway binds. Anything but loopback needs CLAWRL_API_KEY.")
    port: int = declare("port", 30000, "Port of the gateway; 0 picks a free one.")
    engine: str = declare(
        "engine", "transformers", "Engine: 'transformers' (embedded), 'vllm', or the URL of a running vLLM."
    )
    served_model_name: str = declare(
        "served_model_name",
        "clawrl",
        "Model name under which clients reach the newest serving policy; several with commas between them.",
    )
    any_model_name: bool = declare(
        "any_model_name", False, "Serve the newest policy under every unknown model name too: agents insist on theirs."
    )
    max_model_len: int | None = declare(
        "max_model_len",
        None,
        "Longest prompt plus completion, in tokens. Default: what the model and the memory allow, 32,768 at most.",
    )
    max_running: int = declare("max_running", 32, "Requests the engine decodes at once.")
    max_waiting: int = declare("max_waiting", 256, "Requests that may wait; one more is answered 429.")
    max_body_mb: int = declare("max_body_mb", 32, "Largest request body the gateway reads, in MiB.")
    allowed_origins: str | None = declare(
        "allowed_origins",
        None,
        "Origins of web pages that may use the gateway without a key, with commas, as in http://localhost:3000. "
        "Default: the gateway's own alone.",
    )
    allowed_media_domains: str | None = declare(
        "allowed_media_domains",
        None,
        "Domains that the engine may fetch images and other media from, with commas between them. Default: none, "
        "media come with the request (data: URLs).",
    )
    keep_policies: int = declare("keep_policies", 4, "Retired policies kept loaded and reachable by name.")
    session_timeout: float = declare(
        "session_timeout", 3600.0, "Seconds of silence after which a session's last turn expires unscored."
    )
    engine_timeout: float = declare("engine_timeout", 600.0, "Longest wait for the engine's next byte, seconds.")
    engine_patience: float | None = declare(
        "engine_patience",
        None,
        "Seconds that a request waits for an engine that is being started again, before it is answered 503. Default: "
        "30, and 180 for a vLLM, which takes longer to start.",
    )
    hang_timeout: float = declare(
        "hang_timeout", 90.0, "Seconds without an answer after which engine or gateway is started again; 0 for never."
    )
    vllm_data_parallel_size: int | None = declare(
        "vllm_data_parallel_size", None, "Copies of the model. Default: as many as ROLLOUT_GPUS has room for, else 1."
    )
    vllm_max_lora_rank: int | None = declare(
        "vllm_max_lora_rank",
        None,
        "Largest rank of the adapters to be served, 0 for none. Default: the trainer's, else that of the run's "
        "policies, else 32.",
    )
    vllm_dtype: str = declare(
        "vllm_dtype", "auto", "Computing type of vLLM; auto: the model's own on a GPU, float32 on a CPU."
    )
    vllm_args: str | None = declare("vllm_args", None, "Further flags for vLLM's server, in one string.")
    actor_gpus: int = declare("actor_gpus", 0, "GPUs that train. 0: trainer and engine share what is visible.")
    rollout_gpus: int = declare("rollout_gpus", 0, "GPUs for vLLM alone, taken after the trainer's.")
    prm_gpus: int = declare(
        "prm_gpus", 0, "GPUs for a vLLM server of the judge's own (llm, auto; its model: --judge_model), taken last."
    )
    owner_names: str | None = declare(
        "owner_names",
        None,
        "Names or ids under which the owner writes where a client names senders, separated by commas. Default: a "
        "conversation's first sender; nobody in a group chat, nor beside messages without a name.",
    )
    judge: str = declare(
        "judge",
        CHAT_JUDGE,
        "Judge: 'auto' (words by the model where it passes an exam, else by the rules), 'rules' (no model), 'llm', "
        "'off', or the name of one that an installed package adds. Default with --env: rules.",
    )
    judge_url: str | None = declare("judge_url", None, "OpenAI-compatible URL of the llm judge. Default: the engine.")
    judge_model: str | None = declare("judge_model", None, "Model of the llm judge. Default: the engine's base model.")
    judge_votes: int = declare("judge_votes", 3, "Votes the llm judge takes per turn.")
    judge_majority: float = declare(
        "judge_majority",
        0.5,
        "Share of the valid votes that suffices: 3 of 5 decide at 0.6. Below it, and at a tie, the judge abstains.",
    )
    judge_workers: int = declare("judge_workers", 4, "Turns judged at once.")
    judge_temperature: float = declare("judge_temperature", 0.6, "Sampling temperature of the llm judge.")
    judge_max_tokens: int = declare("judge_max_tokens", 1024, "Longest vote of the llm judge, in tokens.")
    judge_timeout: float = declare("judge_timeout", 60.0, "Longest wait for one vote or teacher call, seconds.")
    judge_encoder: str = declare(
        "judge_encoder",
        BEST_ENCODER,
        "What the embedded judge reads with: 'all-MiniLM-L6-v2', installed with the package; 'all-mpnet-base-v2', "
        "which reads better and is fetched from the Hub (438 MB); 'Qwen2.5-Coder-1.5B-Instruct', which reads best "
        "and slowest (1.1 GB more); or 'auto', with --judge auto and a model of your own the best of them that the "
        "machine is made for, else the first.",
    )
    praise_cap: int = declare(
        "praise_cap",
        20,
        "Most approvals by words that count per session and day; near-duplicates count once. 0 sets no bound.",
    )
    hints: bool = declare("hints", True, "Write hindsight hints and score replies under them (needed for OPD).")
    hint_any_score: bool = declare(
        "hint_any_score",
        False,
        "Write hints also where the owner approves or is undecided ('Great, but shorter next time'), not only "
        "where the owner objects.",
    )
    hint_choice: str = declare(
        "hint_choice",
        "gap",
        "Which of several hints is used: 'gap' (it moves the teacher most) or 'overlap' (its teacher shares most "
        "with the policy's 4 most likely tokens).",
    )
    teacher_top_k: int | None = declare(
        "teacher_top_k",
        None,
        "Most likely tokens of the policy that the teacher scores at each position, beside the sampled one (0: none). "
        "Default: a trainer's --opd_top_k; of a run that is served alone, that of its model's preset.",
    )
    custom_rm_path: str | None = declare(
        "custom_rm_path",
        None,
        "Own reward, 'file.py:name' or 'package.module:name', instead of the judge's score: reward(turn), or "
        "score(prompt, response, next_state).",
    )
    ledger_url: str | None = declare(
        "ledger_url",
        None,
        "Database URL of the ledger; one with a password belongs into CLAWRL_LEDGER_URL. Default: ledger.db (SQLite) "
        "in the run folder.",
    )

    @property
    def is_remote(self) -> bool:
        """True if the engine is somebody else's: reached by a URL, not started for the run."""
        return self.engine.startswith(("http://", "https://"))

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port} is no port number: use 0 (any free port) to 65535.")
        if self.judge not in (*JUDGES_OF_OURS, "off") and self.judge not in (added := plugin_names(JUDGES)):
            names = ", ".join([*JUDGES_OF_OURS, *added])
            raise UserError(f"--judge {self.judge!r} is unknown: use {names} or off.")
        if not 0 <= (self.teacher_top_k or 0) <= 128:
            raise UserError(f"--teacher_top_k {self.teacher_top_k} is out of range: use 0 to 128.")
        if self.judge_encoder not in (known := (BEST_ENCODER, *JUDGE_ENCODERS)):
            raise UserError(f"--judge_encoder {self.judge_encoder!r} is unknown: use {' or '.join(known)}.")
        if self.hint_choice not in HINT_CHOICES:
            raise UserError(f"--hint_choice {self.hint_choice!r} is unknown: use {' or '.join(HINT_CHOICES)}.")
        if self.engine not in ("transformers", "vllm") and not self.is_remote:
            raise UserError(f"--engine {self.engine!r} is unknown: use transformers, vllm or an http:// URL.")
        # A URL of settings.json has no password: it is in the environment alone.
        self.ledger_url = add_known_password(self.ledger_url)
        # `base` and `policy-v<N>` pin a version: as an alias they would mean the newest instead.
        reserved = [name for name in self.model_names if name == BASE_MODEL or parse_policy_name(name) is not None]
        if reserved or not self.model_names:
            wrong = f"{', '.join(reserved)} has a meaning of its own" if reserved else "there is no name"
            raise UserError(
                f"--served_model_name {self.served_model_name!r}: {wrong}, use others, such as clawrl,gpt-4o."
            )
        for origin in self.origins:
            # A path or a wildcard never stands in an Origin header, so such an entry would allow nothing.
            if not re.fullmatch(r"https?://[^/?#@*\s]+", origin):
                raise UserError(f"--allowed_origins: {origin!r} is no origin: write one as in http://localhost:3000.")
        if strange := [name for name in self.media_domains if not _DOMAIN.fullmatch(name)]:
            raise UserError(f"--allowed_media_domains: {strange[0]!r} is no domain: write it as in example.org.")
        if self.vllm_dtype not in DTYPES:
            raise UserError(f"--vllm_dtype {self.vllm_dtype!r} is unknown: use {', '.join(DTYPES)}.")
        check_ranges(vars(self), AT_LEAST, AT_MOST, ABOVE_ZERO)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names under which clients reach the newest serving policy, the one we tell people first."""
        names = (name.strip() for name in self.served_model_name.split(","))
        # A name given twice would be listed twice in `/v1/models`.
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def origins(self) -> tuple[str, ...]:
        """`allowed_origins`, one by one."""
        # Without the slash at the end, which people paste and browsers never send.
        listed = (origin.strip().rstrip("/") for origin in (self.allowed_origins or "").split(","))
        return tuple(origin for origin in listed if origin)

    @property
    def media_domains(self) -> frozenset[str]:
        """The domains of `allowed_media_domains`, in lower case."""
        names = (self.allowed_media_domains or "").split(",")
        return frozenset(name.strip().lower() for name in names if name.strip())
