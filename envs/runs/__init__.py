"""Runs that play on a live model and measure it before and after: with a persona, or by practice in an environment.

Training scripts use `persona_run`, `practice_run` and `measured_run`; `persona_worker` and `practice_worker` are the
processes that these start, `persona_options` and `practice_options` what a worker reads of them in the run folder.
`learning_curve` draws a run.
"""
