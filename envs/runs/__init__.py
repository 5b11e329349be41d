"""Runs that play on a live model and measure it before and after: with a persona or by practice in an environment.

`persona_run` and `practice_run` are used by training scripts; `persona_worker` and `practice_worker` are the processes
that they start. `persona_options` and `practice_options` are their options, which a worker reads in the run folder.
"""
