"""The embedded judge's classifier of the owner's words: approval, objection or neither.

`model.Classifier` reads the weights beside it; `train` and `examples` made them.
"""
