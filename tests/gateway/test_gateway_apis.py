"""The other APIs over the embedded engine."""

from api_conversations import *  # noqa: F403 - the tests themselves
