"""The seeded recipe of the bundled model.

From the root of a clone: `PYTHONPATH=examples python -m recipes.tiny.build`; `evaluate` measures a model that it made.
The model and its word problems are part of the package (`clawrl_trl.tiny`, `clawrl_trl.envs.chat.problems`).
"""
