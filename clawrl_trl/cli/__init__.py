"""The `clawrl` command: its subcommands, and what they print.

The entry point is `main.main`. Nothing of this package is imported by another one.
"""
