"""Seeded generators of the task sets in `examples/tasks`.

From the root of a clone: `PYTHONPATH=examples python -m recipes.tasks.terminal FOLDER`.
"""
