"""Changes to vLLM that are made inside the workers of our own server.

vLLM imports this module in every worker before it builds the model there (`--worker-extension-cls`) and makes
`WorkerExtension` a base class of its worker; its methods can then be called with `/collective_rpc`.
"""

from clawrl_trl.engines.vllm import compat, lora_cpu
from clawrl_trl.engines.vllm.worker_extension import PolicyLoader

compat.check_reload()
if compat.is_on_cpu():
    lora_cpu.install()


class WorkerExtension(PolicyLoader):
    """Methods added to vLLM's worker; `self` is the worker."""
