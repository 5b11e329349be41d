"""Changes to vLLM that are made inside the workers of our own server.

vLLM imports this module in every worker before it builds the model there (`--worker-extension-cls`) and makes
`WorkerExtension` a base class of its worker; its methods can then be called with `/collective_rpc`.
"""

from vllm.platforms import current_platform

from clawrl_trl.engines.vllm import lora_cpu
from clawrl_trl.engines.vllm.worker_extension import PolicyLoader

if current_platform.is_cpu():
    lora_cpu.install()


class WorkerExtension(PolicyLoader):
    """Methods added to vLLM's worker; `self` is the worker."""
