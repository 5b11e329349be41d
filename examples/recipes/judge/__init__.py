"""The recipe of the rules judge's classifier: `PYTHONPATH=examples python -m recipes.judge.train` from a clone."""
