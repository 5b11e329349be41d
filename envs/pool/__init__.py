"""Environments on other machines.

Other packages use `remote.RemoteEnv` to work in one, and `command`, the `clawrl env-server` that lends them. Within
the package, `pool` holds the environments and their leases, `server` is its HTTP API and `wire` the format of its
messages.
"""
