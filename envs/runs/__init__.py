"""Runs that teach a live model and measure it before and after: by a persona, or by practice in an environment.

Training scripts use `persona_run`, `practice_run` and `measured_run`; `persona_worker` and `practice_worker` are the
processes that these start. `learning_curve` draws a run.
"""
