"""Reinforcement learning for live agents, on TRL and TorchRL.

Importing this package costs nothing: no torch, no server. Each part is imported by its own name,
`clawrl_trl.gateway`, `clawrl_trl.trainers` and so on, so that the chat path never pays for training.
"""

import os

# Nothing leaves the machine unasked: the libraries below us report their use unless told not to.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
