"""Names of policy versions: `policy-v<N>`, for engines, clients and folders alike, spelled here alone."""

import re

BASE_MODEL = "base"
"""Name under which our engines serve the model without an adapter; others may have their own (`find_base_name`)."""

POLICY_NAME_FORM = "policy-v<N>"
"""How messages describe such a name."""

# Clients send names too: nine digits keep the number in range of every engine and ledger that sees it.
_POLICY_NAME = re.compile(r"policy-v(\d{1,9})")


def name_policy(version: int) -> str:
    """Name of a policy version, from 1; `policy-v3` for 3."""
    return f"policy-v{version}"


def parse_policy_name(name: str) -> int | None:
    """Return the version that a policy's name stands for, or `None` if it is no such name."""
    match = _POLICY_NAME.fullmatch(name)
    return int(match[1]) if match else None
