"""The embedded judge's classifier of the owner's words: approval, objection or neither.

`model.Classifier` reads the weights beside it; `examples/recipes/judge` in a clone made them from `training.json`.
"""
