"""The sandbox for everything that runs untrusted code.

Environments use `sandbox` (`Sandbox`, with `Bind` and `Limits`), `worker` (a program in a sandbox that stays),
`canaries` (detects code under test that forges its results), `backends` and `bubblewrap` (which back ends work here)
and `untrusted_files` (reads and removes what untrusted code wrote).
"""
