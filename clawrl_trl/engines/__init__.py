"""Inference engines behind one HTTP dialect, that of vLLM's OpenAI-compatible server.

Other packages use `client.EngineClient` (asyncio) and `sync_client.SyncEngineClient` to talk to any engine, `calls`
for bodies and names of that dialect, `kinds` for what an engine can load, `launch` to start one as a process,
`families`, `context` and `devices` for facts about models and machines, `hub_access` for whether a model can be had.
`embedded` is the engine on transformers, `vllm` runs a vLLM server; only these two import torch, in their own
processes.
"""
