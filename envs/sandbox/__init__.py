"""The sandbox for everything that runs untrusted code.

Other packages use `sandbox.Sandbox` with `Bind` and `Limits`, `worker.Worker` for a program that stays, and
`canaries` to notice code under test that forges its results.
"""
