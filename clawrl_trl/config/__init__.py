"""Options of a run, as dataclasses whose help is their documentation.

`serving` holds those of engine, gateway and judge, stored in the run folder as `settings.json`; `script` those of a
training script; `flags` reads either from a command line.
"""
