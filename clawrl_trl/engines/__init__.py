"""Inference engines behind one dialect of HTTP, that of vLLM's OpenAI-compatible server.

`client.EngineClient` and `sync_client.SyncEngineClient` talk to any of them; `launch` starts one as a process;
`embedded` is the engine on transformers, `vllm` runs a real vLLM server. Only `embedded` and `vllm` import torch.
"""
