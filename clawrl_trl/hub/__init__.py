"""Publishing a policy version on the Hugging Face Hub, by a list of what may leave the machine.

A publication is put together in a new temporary folder: weights, tokenizer, model card and training receipt. That
folder is uploaded; the run folder never is. Trainers and the `clawrl push` command use the names below. Importing this
package loads neither torch nor transformers.
"""

from clawrl_trl.hub.base_model import BaseModel
from clawrl_trl.hub.card import make_card
from clawrl_trl.hub.files import TRAINING_RECORD, stage
from clawrl_trl.hub.publication import Publication, stage_policy, stage_weights
from clawrl_trl.hub.repository import Repository

__all__ = [
    "TRAINING_RECORD",
    "BaseModel",
    "Publication",
    "Repository",
    "make_card",
    "stage",
    "stage_policy",
    "stage_weights",
]
