"""The rules judge's classifier of the owner's words: approval, objection or neither.

`model` reads the weights beside it; only the judge and the recipe that trains them use it (`examples/recipes/judge` in
a clone, with its data).
"""
