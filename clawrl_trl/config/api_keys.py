"""Bearer keys, which stay in the environment and are never written into a run folder."""

import os

KEY_ENVIRONMENT = {
    "chat": ("CLAWRL_API_KEY", "SGLANG_API_KEY", "OPENCLAW_API_KEY"),
    "feedback": ("CLAWRL_FEEDBACK_KEY",),
    "admin": ("CLAWRL_ADMIN_KEY",),
}
"""Where the bearer key of each scope is looked up."""


def read_api_key(scope: str) -> str | None:
    """Return the bearer key of a scope (`chat`, `feedback`, `admin`) from the environment, or `None`."""
    for variable in KEY_ENVIRONMENT[scope]:
        value = os.environ.get(variable)
        # An empty variable counts as unset: shells and compose files set them so.
        if value:
            return value
    return None


def read_client_key(scope: str) -> str | None:
    """Return the key of a scope that our own clients present: the first, where several are set with commas."""
    keys = [key.strip() for key in (read_api_key(scope) or "").split(",") if key.strip()]
    return keys[0] if keys else None
