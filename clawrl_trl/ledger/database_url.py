"""Database URLs and their passwords.

A password belongs into the environment of the processes that need it: never into a file of the run, a command line or
a message. It is looked up in `CLAWRL_LEDGER_URL`, and a PostgreSQL client finds it in `PGPASSWORD` or `~/.pgpass` too.
"""

import logging
import os
import sys

LEDGER_URL = "CLAWRL_LEDGER_URL"
"""Environment variable with the ledger's URL."""
_SECRETS = ("password", "sslpassword")

logger = logging.getLogger(__name__)


def strip_password(url: str | None) -> str | None:
    """A database URL as it may be written down: without password; `None` for one that can't be read, or for none.

    Args:
        url (`str`, *optional*): A URL, or the path of a file, which has none.
    """
    if url is None or "://" not in url:
        return url
    # Imported here: reading a run's settings needs no database library.
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url).difference_update_query(_SECRETS)
    # `None` and not the text: of what can't be read nobody knows where a password stands in it.
    except (ArgumentError, ValueError):
        return None
    # Rebuilt: SQLAlchemy's own rendering puts three asterisks in, which another process would take for the password.
    public = URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database, parsed.query
    )
    return public.render_as_string(hide_password=False)


def add_known_password(url: str | None) -> str | None:
    """A database URL with the password that the environment has for it; without one there, as it is."""
    from_environment = os.environ.get(LEDGER_URL)
    if from_environment is None or url is None or url != strip_password(url):
        return url
    # Only the password may come from there: another host or database is another ledger.
    return from_environment if strip_password(from_environment) == url else url


def share_password(url: str | None) -> None:
    """Hand a URL with a password to the processes that are started from now on, by the environment."""
    if url is None or strip_password(url) == url:
        return
    os.environ[LEDGER_URL] = url
    # Handing it on by the environment hides nothing that was typed as an argument.
    if any(url in word for word in sys.argv):
        logger.warning(
            "--ledger_url shows its password to every user of this machine (ps): set %s instead", LEDGER_URL
        )
