"""A vLLM server as the engine of a run.

`clawrl_trl.engines.launch` uses `server` (the server's command and environment) and `server_log` (its progress, read
from its log). The other modules run inside the server's processes; nothing imports them here.
"""
