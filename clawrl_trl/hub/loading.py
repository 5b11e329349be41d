"""Code that loads a published policy, for its card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for the largest rank of an adapter."""
PLACEHOLDER = "PATH_OF_THE_BASE_MODEL"
_BUNDLED_FOLDER = "$(python -c 'from clawrl_trl.tiny import MODEL_PATH; print(MODEL_PATH)')"


def write_loading_code(receipt: Mapping[str, Any], repo_id: str, files: Path) -> str:
    """Write code for transformers with PEFT, and commands for vLLM and `clawrl serve`.

    Args:
        receipt: The training receipt.
        repo_id: The repository to load.
        files: The staged publication.
    """
    base = receipt["base_model"]
    adapter = (files / "adapter_config.json").is_file()
    code = _write_adapter_code(base, repo_id, files) if adapter else _write_model_code(repo_id, files)
    return (
        f"With transformers{' and PEFT' if adapter else ''}:\n\n```python\n{code}```\n\n"
        f"With vLLM:\n\n```bash\n{_write_vllm_command(receipt, repo_id, adapter)}\n```\n\n"
        f"With clawrl-trl:\n\n{_write_clawrl_command(repo_id, adapter)}"
    )


def _choose_classes(files: Path) -> tuple[str, str]:
    """Choose the classes of the model and of what prepares its input."""
    if (files / "preprocessor_config.json").is_file() or (files / "processor_config.json").is_file():
        return "AutoModelForImageTextToText", "AutoProcessor"
    return "AutoModelForCausalLM", "AutoTokenizer"


def _tokenizer_source(base: str, repo_id: str, files: Path) -> str:
    return json.dumps(repo_id) if (files / "tokenizer_config.json").is_file() else base


def _write_adapter_code(base: Mapping[str, Any], repo_id: str, files: Path) -> str:
    model, tokenizer = _choose_classes(files)
    bundled = base["kind"] == "bundled"
    source = "MODEL_PATH" if bundled else json.dumps(base["name"] or PLACEHOLDER)
    return (
        ("from clawrl_trl.tiny import MODEL_PATH\n" if bundled else "")
        + "from peft import PeftModel\n"
        + f"from transformers import {model}, {tokenizer}\n\n"
        + f'base = {model}.from_pretrained({source}, dtype="auto")\n'
        + f"model = PeftModel.from_pretrained(base, {json.dumps(repo_id)})\n"
        + f"tokenizer = {tokenizer}.from_pretrained({_tokenizer_source(source, repo_id, files)})\n"
    )


def _write_model_code(repo_id: str, files: Path) -> str:
    model, tokenizer = _choose_classes(files)
    return (
        f"from transformers import {model}, {tokenizer}\n\n"
        f'model = {model}.from_pretrained({json.dumps(repo_id)}, dtype="auto")\n'
        f"tokenizer = {tokenizer}.from_pretrained({json.dumps(repo_id)})\n"
    )


def _write_vllm_command(receipt: Mapping[str, Any], repo_id: str, adapter: bool) -> str:
    if not adapter:
        return f"vllm serve {repo_id}"
    base = receipt["base_model"]
    source = f'"{_BUNDLED_FOLDER}"' if base["kind"] == "bundled" else base["name"] or PLACEHOLDER
    rank = next(size for size in _VLLM_RANKS if size >= receipt["adapter"].get("r", 16) or size == _VLLM_RANKS[-1])
    return f"vllm serve {source} --enable-lora --max-lora-rank {rank} --lora-modules policy={repo_id}"


def _write_clawrl_command(repo_id: str, adapter: bool) -> str:
    if not adapter:
        return f"```bash\nclawrl serve --model_name_or_path {repo_id}\n```"
    return (
        "```python\n"
        'model.merge_and_unload().save_pretrained("merged")\n'
        'tokenizer.save_pretrained("merged")\n'
        "```\n\n```bash\nclawrl serve --model_name_or_path merged\n```"
    )
