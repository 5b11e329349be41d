"""Runs that teach a live model and measure it before and after: by a persona or by practice in an environment.

`persona_run` and `practice_run` are used by training scripts; `persona_worker` and `practice_worker` are the processes
that they start.
"""
