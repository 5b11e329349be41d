"""Recipes of what the package ships: the bundled model, the task sets, the judge's classifier.

They run from the root of a clone with `PYTHONPATH=examples` and are not part of the wheel.
"""
