"""Publishing a policy on the Hugging Face Hub, by a list of what may leave the machine.

A publication is put together in a fresh temporary folder: weights, tokenizer, model card and training receipt. That
folder is what is uploaded; the run folder never is. Importing this package loads neither torch nor transformers.
"""

from clawrl_trl.hub.base_model import BaseModel
from clawrl_trl.hub.card import make_card
from clawrl_trl.hub.files import TRAINING_RECORD, stage
from clawrl_trl.hub.publication import Publication, staged_policy, staged_weights
from clawrl_trl.hub.repository import Repository

__all__ = [
    "TRAINING_RECORD",
    "BaseModel",
    "Publication",
    "Repository",
    "make_card",
    "stage",
    "staged_policy",
    "staged_weights",
]
