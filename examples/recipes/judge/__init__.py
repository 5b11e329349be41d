"""The recipe of the embedded judge's classifier: `PYTHONPATH=examples python -m recipes.judge.train` from a clone."""
