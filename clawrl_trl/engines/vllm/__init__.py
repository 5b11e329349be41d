"""A vLLM server as the engine of a run.

`server` works out its command and environment. The other modules run inside the server (`worker`, `worker_extension`,
`policy`, `version_notes`, `guard`, `lora_cpu`) or read its log (`server_log`).
"""
