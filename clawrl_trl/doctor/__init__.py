"""`clawrl doctor`: is this engine, this model, this machine fit for training?

Training on what an engine sampled rests on facts that no error message announces when they fail: ids that a stream
drops, log-probs of another temperature, an adapter that did not take. Each check here asks one such question of the
real thing and answers with one `Finding`. Nothing is changed: what is loaded for a check is unloaded after it.
"""

from clawrl_trl.doctor.finding import Finding, Skip

__all__ = ["Finding", "Skip"]
