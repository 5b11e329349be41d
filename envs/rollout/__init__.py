"""Rollouts: many episodes at a time, in groups of one task, reported to the gateway (`rollout.Rollout`)."""
