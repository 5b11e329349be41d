"""Seeded generators of the task sets in `examples/tasks`.

From the root of a clone: `PYTHONPATH=examples python -m recipes.tasks.NAME FOLDER`, with `terminal`, `gui`, `swe` or
`toolcall` for NAME; the folder gets `train.jsonl` and `heldout.jsonl`.
"""
