"""Options of serving, and presets of a training script, as dataclasses whose help is their documentation.

Other packages use `serving` (options of engine, gateway and judge, stored in the run folder as `settings.json`),
`serving_arguments` (those that a training script takes too), `api_keys`, `presets` (named defaults) and `flags` (reads
dataclasses from a command line). A training script's own options are in `clawrl_trl.script`. It imports no torch.
"""
