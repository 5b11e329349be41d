"""Seeded generators of the task sets in `examples/tasks`."""
