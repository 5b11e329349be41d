"""Names that flags had in the last version: they work for one release more, with a warning that names the new one."""

import logging
import os
from collections.abc import Mapping

from clawrl_trl.config.flags import Values, check_ranges, read_mapping

logger = logging.getLogger(__name__)

RENAMED_FLAGS = {"max_steps": "env_max_steps", "num_generations": "group_size"}
"""Flags that had a second meaning with `--env`, and what that is called now."""


def rename_flags(values: Values, beside: Mapping[str, object]) -> Values:
    """Return the values of a run with `--env` by their new names.

    Args:
        values (`dict`): Values by the names of their flags.
        beside (`Mapping`): All that the user has set. An old name that stands beside the new one keeps the meaning
            that it has in TRL.

    Raises:
        UserError: If a value is out of range.
    """
    renamed = dict(values)
    for old, new in RENAMED_FLAGS.items():
        if old in values and new not in beside:
            check_ranges({old: values[old]}, {old: 1})
            _warn(f"--{old} with --env", f"--{new}", f"--{old} has TRL's meaning")
            renamed[new] = renamed.pop(old)
    return renamed


def rename_variables(content: Values) -> Values:
    """Return a YAML file's content with a mapping of environment variables under its new name."""
    if not isinstance(content.get("env"), dict):
        return content
    _warn("env: with a mapping", "env_vars", "env: names the environment alone")
    others = {name: value for name, value in content.items() if name != "env"}
    return {**others, "env_vars": {**content["env"], **read_mapping("env_vars", content.get("env_vars"))}}


def _warn(old: str, new: str, later: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # once, and not once for each process of a trainer
        logger.warning("%s is called %s now; from the next release on %s.", old, new, later)
