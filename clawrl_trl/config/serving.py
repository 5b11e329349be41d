"""Settings of the serving half: engine, gateway and judge.

`clawrl serve` and `examples/train.py` show the same flags (`serving_arguments`); every child process reads the
resolved values from `settings.json` in the run folder. API keys and the password of a ledger's URL are never written
there: they stay in the environment.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from clawrl_trl.config.presets import BUNDLED, NAMED, load_preset
from clawrl_trl.config.serving_arguments import DTYPES, ServingArguments, declare
from clawrl_trl.errors import UserError
from clawrl_trl.ledger.database_url import strip_password
from clawrl_trl.run import make_private, write_private

FILE_NAME = "settings.json"
OLD_FILE_NAME = "config.json"
"""Where settings lay before; a whole model that is trained puts its own config there."""

DEFAULT_RUN = "runs/live"
BUNDLED_TEMPERATURE = 0.9
"""Sampling temperature of the bundled model: at 1 one plain solution in seventy goes wrong on a word that the model
itself finds next to impossible, at 0.9 one in two hundred."""
DEFAULT_CONTEXT = 32_768
"""Longest context served unless more is asked for, in tokens: agents' requests have 7,000 to 30,000."""
AGENT_CONTEXT = 16_384
"""Tokens below which an agent such as OpenClaw runs out of context: its prompt and tools take 7,000 to 13,000."""
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(kw_only=True)
class ServeSettings(ServingArguments):
    """Settings of `clawrl serve`: the engine, the gateway and the judge of one run folder.

    What it adds to `ServingArguments` a training script has already, in the arguments of its trainer and its model.
    """

    run: str = declare("run", DEFAULT_RUN, "Run folder: ledger, policies, logs and the resolved settings.")
    model_name_or_path: str | None = declare(
        "model_name_or_path",
        None,
        "Causal language model to serve: folder or hub id. Default: the bundled model.",
    )
    temperature: float | None = declare(
        "temperature",
        None,
        "Sampling temperature of requests that set none. Default: 1, with the bundled model 0.9.",
    )
    dtype: str = declare(
        "dtype",
        "float32",
        "Computing type of the embedded engine: float32, bfloat16, float16 or auto (bfloat16 on a GPU, else float32).",
    )
    max_staleness: int = declare(
        "max_staleness",
        4,
        "Policy versions a sample may be behind; vLLM keeps room for as many adapters and two more.",
    )
    vllm_gpu_memory_utilization: float | None = declare(
        "vllm_gpu_memory_utilization",
        None,
        "Share of a GPU's memory for vLLM. Default: 0.45 beside a trainer, 0.9 on devices of its own.",
    )
    vllm_tensor_parallel_size: int = declare("vllm_tensor_parallel_size", 1, "GPUs that share one copy of the model.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in DTYPES:
            raise UserError(f"--dtype {self.dtype!r} is unknown: use {', '.join(DTYPES)}.")
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

    @property
    def teacher_candidates(self) -> int:
        """How many tokens of the policy the teacher scores at each position, beside the sampled one."""
        if self.teacher_top_k is not None:
            return self.teacher_top_k
        preset = load_preset(BUNDLED if self.model_name_or_path is None else NAMED)
        return int(preset.select_values("combine", with_env=False)["opd_top_k"])

    def _check_devices(self) -> None:
        share = self.vllm_gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise UserError(f"--vllm_gpu_memory_utilization {share} is no share: use a value above 0, up to 1.")
        split, copies = self.vllm_tensor_parallel_size, self.vllm_data_parallel_size or 1
        counts = (self.actor_gpus, self.rollout_gpus, self.prm_gpus, self.vllm_max_lora_rank or 0)
        if split < 1 or copies < 1 or min(counts) < 0:
            raise UserError("Counts of GPUs, --vllm_*_parallel_size and --vllm_max_lora_rank can't be negative.")
        # Without counts of GPUs vLLM itself knows how many it sees.
        if self.rollout_gpus and split * copies > self.rollout_gpus:
            raise UserError(
                f"--vllm_tensor_parallel_size {split} times --vllm_data_parallel_size {copies} is more than "
                f"ROLLOUT_GPUS={self.rollout_gpus}: lower them or give the engine more devices."
            )

    def save(self) -> None:
        """Write the resolved settings, without passwords, to `settings.json` in the run folder, atomically."""
        folder = Path(self.run)
        make_private(folder)
        # Every resolved value, defaults too: a child process must not read the environment in its own way.
        values = asdict(self) | {"ledger_url": strip_password(self.ledger_url)}
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
