"""Environments on other machines: a pool (`pool`), its HTTP `server` and `command`, and `remote` to use one."""
