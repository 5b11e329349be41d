"""Reinforcement learning for live agents, on TRL and TorchRL.

Importing this package loads neither torch nor a server; each part is imported by its own name (`clawrl_trl.gateway`,
`clawrl_trl.trainers`, ...), so that the chat path does not pay for training. `docs/README.md` of a clone has a page on
each part. Modules that all parts use: `run` (the run folder), `errors` (mistakes of a user), `plugins` (entry points
of other packages), `custom` (functions given by path).
"""

import os

# Nothing leaves the machine unasked: the libraries below us report their use unless told not to.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
