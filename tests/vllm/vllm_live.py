"""A run that is served by a real vLLM, and a policy for it."""

from pathlib import Path

import psutil
import torch
from live_run import LiveRun, wait_for
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from clawrl_trl.ledger import Ledger, batches, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies.checksums import compute_digest, list_weight_files
from clawrl_trl.tiny import MODEL_PATH

LAUNCHER = "clawrl_trl.engines.launch"


def make_adapter(folder: Path) -> Path:
    """An adapter of the bundled model that differs from it a little."""
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(0.2)
    model.save_pretrained(folder)
    return folder


def serve_policy(live: LiveRun, folder: Path, version: int) -> None:
    """Make a folder the serving policy, and return when the gateway has switched to it."""
    ledger = Ledger.open(live.folder.ledger)
    with ledger.transaction() as tx:
        batches.commit(
            tx,
            [],
            Policy(
                version=version,
                parent=version - 1,
                path=str(folder),
                sha256=compute_digest(*list_weight_files(folder)),
            ),
        )
        policies.promote(tx, version)
    ledger.close()
    with live.client() as client:
        wait_for(
            lambda: f"policy-v{version}" in [model.id for model in client.models.list()], 60, "the gateway's switch"
        )


def launcher(live: LiveRun) -> psutil.Process | None:
    """Our process that attends the run's server, if it has started one."""
    assert live.process is not None
    for child in psutil.Process(live.process.pid).children():
        if LAUNCHER in child.cmdline() and child.children():
            return child
    return None


def server_process(live: LiveRun) -> psutil.Process:
    """vLLM's front end."""
    process = launcher(live)
    assert process is not None
    (server,) = process.children()
    return server
