"""Rollouts: many episodes at a time, in groups of one task, reported to the gateway.

Other packages use `rollout.Rollout`, `episode` (episodes and their groups), `signals` (process rewards by a judge) and
`screenshots` (pictures kept of episodes).
"""
