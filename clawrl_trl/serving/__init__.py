"""Serving a run: engine, gateway and judge as child processes that are restarted when they end.

Other packages use `serve` (start them, or the engine alone), `attach` (a trainer's way to a served run) and
`connection` (what a client needs to connect, as text); `supervisor` restarts what ends.
"""
