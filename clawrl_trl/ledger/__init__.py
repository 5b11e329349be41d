"""The ledger: the database of a run, shared by its processes.

The only place where serving, judging, training and environments meet: sessions, turns, feedback, verdicts, samples,
batches and policy versions, in SQLite by default and in PostgreSQL by URL. What a transaction committed survives
`kill -9` and a power cut. All packages use the names below and the rows of `schema`; it imports no torch.

```python
from clawrl_trl.ledger import Ledger, turns

ledger = Ledger.open("runs/live/ledger.db")
with ledger.reader() as tx:
    for row in turns.sessions(tx):
        print(row["session_id"], row["turns"])
```
"""

from clawrl_trl.ledger import (
    batches,
    episodes,
    events,
    history,
    interruptions,
    policies,
    samples,
    schema,
    states,
    turns,
)
from clawrl_trl.ledger.errors import AlreadyTrained, DigestMismatch, LedgerError, LedgerWriteError
from clawrl_trl.ledger.states import IllegalTransition
from clawrl_trl.ledger.store import Ledger
from clawrl_trl.ledger.writer import LedgerWriter

__all__ = [
    "AlreadyTrained",
    "DigestMismatch",
    "IllegalTransition",
    "Ledger",
    "LedgerError",
    "LedgerWriteError",
    "LedgerWriter",
    "batches",
    "episodes",
    "events",
    "history",
    "interruptions",
    "policies",
    "samples",
    "schema",
    "states",
    "turns",
]
