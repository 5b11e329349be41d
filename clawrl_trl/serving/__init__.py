"""Serving a run: engine, gateway and judge as child processes that are kept alive.

`serve` starts them, `supervisor` restarts what ends, `attach` is a trainer's way to a served run, and `connection`
prints what a client needs to connect.
"""
