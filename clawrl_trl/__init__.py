"""Reinforcement learning for live agents, on TRL and TorchRL.

Importing this package costs nothing: no torch, no server. Each part is imported by its own name,
`clawrl_trl.gateway`, `clawrl_trl.trainers` and so on, so that the chat path never pays for training.
"""

__version__ = "0.1.0"
