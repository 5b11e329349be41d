"""Credit: from verdicts to per-token advantages, and the sources that hand samples to a trainer.

Other packages use the names below. Per-token arrays have the length T of a sample's completion; NaN means "no term
here". It imports no torch.
"""

from clawrl_trl.credit.advantages import accepted_prefix, binary, combine, opd
from clawrl_trl.credit.credited_sample import CreditedSample
from clawrl_trl.credit.ledger_source import LedgerSource
from clawrl_trl.credit.sample import TrainingSample
from clawrl_trl.credit.source import ListSource, SampleBatch, Source, SourceOptions, as_source

__all__ = [
    "CreditedSample",
    "LedgerSource",
    "ListSource",
    "SampleBatch",
    "Source",
    "SourceOptions",
    "TrainingSample",
    "accepted_prefix",
    "as_source",
    "binary",
    "combine",
    "opd",
]
