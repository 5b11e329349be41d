"""`clawrl doctor`: checks whether an engine, a model and this machine are fit for training.

Training on what an engine sampled relies on facts that no error message announces when they fail: ids that a stream
drops, log-probs of another temperature, an adapter without effect. Each check asks one such question of the real
engine and answers with one `Finding`. Nothing is changed: what is loaded for a check is unloaded after it.

Other packages use `command.run_doctor`; `memory` estimates what a model takes, as `docs/engines.md` shows.
"""

from clawrl_trl.doctor.finding import Finding, Skip

__all__ = ["Finding", "Skip"]
