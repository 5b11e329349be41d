"""Recipes of what the package ships: the bundled model and the task sets. From a clone, not part of the wheel."""
