"""Options of a measured run: flags of a training script, kept in the run folder for the process that plays.

A flag is declared once, as a field of a class of arguments; the options add what the script derives from other flags.
The process that plays is given the run folder alone and reads them there.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar, Self

from clawrl_trl.config.flags import check_ranges
from clawrl_trl.errors import UserError
from clawrl_trl.run import write_private

RANGE = ("at_least", "at_most")
"""Keys of a field's metadata: the smallest and the largest usable value of its flag."""


@dataclass(kw_only=True)
class MeasuredArguments:
    """Flags of every measured run."""

    eval_problems: int = field(
        default=50, metadata={"help": "Held-out problems, or episodes, of each evaluation.", "at_least": 1}
    )
    env_max_steps: int | None = field(
        default=None,
        metadata={
            "help": "Most actions of an episode; of a chat, most messages of the user. Default: with --env MAX_STEPS, "
            "else the environment's own; 3 messages.",
            "at_least": 1,
        },
    )


@dataclass(kw_only=True)
class RunOptions(MeasuredArguments):
    """Options of a measured run, in a file of the run folder.

    Args:
        seed (`int`, *optional*, defaults to `0`): Seed of all that is drawn.
    """

    FILE_NAME: ClassVar[str]

    seed: int = 0

    @classmethod
    def of_arguments(cls, arguments: object, **derived: object) -> Self:
        """Take the options from arguments that have fields of the same names, and from `derived`."""
        values = {each.name: getattr(arguments, each.name) for each in fields(cls) if hasattr(arguments, each.name)}
        return cls(**{**values, **derived})

    def save(self, run: str | Path) -> None:
        """Write the options into a run folder, atomically and readable by its owner alone."""
        write_private(Path(run) / self.FILE_NAME, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, run: str | Path) -> Self:
        """Read the options of a run folder.

        Raises:
            UserError: If it holds none that can be read.
        """
        path = Path(run) / cls.FILE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            names = {each.name for each in fields(cls)}
            # A file of a later version may hold more than this one knows.
            return cls(**{name: value for name, value in content.items() if name in names})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} can't be read ({error}): a training script writes it when it starts.") from None


def check_declared_ranges(arguments: MeasuredArguments) -> None:
    """Check arguments against the ranges that their fields declare.

    Raises:
        UserError: For the first value that is out of range or no finite number.
    """
    at_least, at_most = (
        {each.name: each.metadata[bound] for each in fields(arguments) if bound in each.metadata} for bound in RANGE
    )
    check_ranges(vars(arguments), at_least, at_most)
