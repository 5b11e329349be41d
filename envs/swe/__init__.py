"""The software environment (`env.SWEEnv`): issues in SWE-bench's format, graded by hidden tests.

Other packages use `env` and `tasks`.
"""
