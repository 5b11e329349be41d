"""The `clawrl` command: its subcommands, and what they print.

The entry point is `main.main`. No other package imports anything of this one.
"""
