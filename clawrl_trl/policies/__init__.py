"""Policies: immutable versions, the gate before serving, publishing and rolling back.

Trainers, gateway, Hub and command line use the names below. Importing this package loads neither torch nor
transformers; the trainer, which has them, drives it.
"""

from clawrl_trl.policies.checksums import find_damage, find_state_damage
from clawrl_trl.policies.damage import reject_damaged
from clawrl_trl.policies.gate import Candidate, FirstGate, Gate, GateReport
from clawrl_trl.policies.pruning import pin_version, prune_versions, remove_pruned
from clawrl_trl.policies.publish import Publisher, rollback
from clawrl_trl.policies.versions import PolicyStore

__all__ = [
    "Candidate",
    "FirstGate",
    "Gate",
    "GateReport",
    "PolicyStore",
    "Publisher",
    "find_damage",
    "find_state_damage",
    "pin_version",
    "prune_versions",
    "reject_damaged",
    "remove_pruned",
    "rollback",
]
