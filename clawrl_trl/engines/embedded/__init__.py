"""The embedded engine: continuous batching on transformers, for small models and machines without vLLM.

`python -m clawrl_trl.engines.embedded --run DIR` runs it. Other packages use it over HTTP only and import nothing of
it.
"""
