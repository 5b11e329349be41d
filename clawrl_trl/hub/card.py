"""The model card, written from a training receipt and the names of the files beside it."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from clawrl_trl.hub.loading import write_loading_code

PAPER = ("OpenClaw-RL: Train Any Agent Simply by Talking", "2603.10165")
CITATION = """\
@article{wang2026openclawrl,
    title   = {{OpenClaw-RL: Train Any Agent Simply by Talking}},
    author  = {Yinjie Wang and Xuyang Chen and Xiaolong Jin and Mengdi Wang and Ling Yang},
    year    = 2026,
    eprint  = {arXiv:2603.10165},
}"""
METHODS = {
    "binary": "Binary RL: the judge's score of a reply is the advantage of each of its tokens",
    "opd": "on-policy distillation: the base model, shown a hint from hindsight, is the teacher",
    "combine": "Binary RL and on-policy distillation combined: scores, and a teacher that is shown hints",
}
MEASURES = {
    "score": "replies in the wanted style",
    "correct": "correct answers",
    "success": "episodes that succeeded",
}


def make_card(receipt: Mapping[str, Any], repo_id: str, *, files: Path, tags: Collection[str] = ()) -> str:
    """Write a model card.

    Args:
        receipt: The training receipt; all figures are its.
        repo_id: Repository in which the card will lie.
        files: The staged publication.
        tags: Tags beside the usual ones.
    """
    sections = {
        "Base model": _write_base(receipt["base_model"]),
        "Training": _write_training(receipt),
        "Evaluation": _write_evaluation(receipt.get("evaluation") or {}),
        "How to load it": write_loading_code(receipt, repo_id, files),
        "Licence": _write_licence(receipt["base_model"]),
        "Privacy": _PRIVACY,
        "Citation": f"```bibtex\n{CITATION}\n```",
    }
    kind = "LoRA adapter" if _is_adapter(files) else "model"
    opening = f"A {kind} trained with clawrl-trl on what the model itself said while it was in use."
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"---\n{_write_header(receipt, files, tags)}\n---\n\n# {repo_id.split('/')[-1]}\n\n{opening}\n\n{body}\n"


def _is_adapter(files: Path) -> bool:
    return (files / "adapter_config.json").is_file()


def _write_header(receipt: Mapping[str, Any], files: Path, tags: Collection[str]) -> str:
    from huggingface_hub import ModelCardData

    base, method = receipt["base_model"], receipt["method"]
    adapter = _is_adapter(files)
    usual = [
        "trl",
        "clawrl-trl",
        "reinforcement-learning",
        *([method] if method else []),
        *(["lora"] if adapter else []),
    ]
    # The Hub shows a base model as a link: a local path would be published, and the bundled model has no page.
    data = ModelCardData(
        base_model=base["name"] if base["kind"] == "hub" else None,
        base_model_relation="adapter" if adapter else "finetune",
        library_name="peft" if adapter else "transformers",
        license=base["licence"],
        language="en" if base["kind"] == "bundled" else None,
        pipeline_tag="image-text-to-text" if (files / "preprocessor_config.json").is_file() else "text-generation",
        tags=sorted({*usual, *tags}),
    )
    return str(data.to_yaml()).strip()


def _write_base(base: Mapping[str, Any]) -> str:
    if base["kind"] == "bundled":
        return (
            f"`{base['name']}`, which comes with clawrl-trl: a Qwen3-architecture model of 3.7 million parameters "
            "that does short arithmetic homework in English, made to try live training on a plain machine. It knows "
            "no facts and is no product."
        )
    kind = f" Its architecture is `{base['architecture']}`." if base["architecture"] else ""
    if base["kind"] == "local":
        return f"A model from a local folder, of which no public name is known.{kind}"
    revision = f" at revision `{base['revision']}`" if base["revision"] else ""
    return f"[{base['name']}](https://huggingface.co/{base['name']}){revision}.{kind}"


def _write_training(receipt: Mapping[str, Any]) -> str:
    method = METHODS.get(receipt["method"] or "", "reinforcement learning")
    trainer = f" (`{receipt['trainer']}`)" if receipt["trainer"] else ""
    title, paper = PAPER
    policy = receipt["policy"]
    version = f" This is policy version {policy['version']}, of {policy['created_at'][:10]}." if policy else ""
    text = f"Method: {method}{trainer}, as in [{title}](https://huggingface.co/papers/{paper}).{version}"
    trained, collected = (receipt["data"].get(name) or {} for name in ("trained", "collected"))
    facts = {
        "trained on": {**trained, **{name: policy[name] for name in ("kl_to_base",) if name in policy}},
        "collected by the run": {name: value for name, value in collected.items() if not isinstance(value, Mapping)},
        "adapter": receipt["adapter"],
        "hyper-parameter": receipt["hyper_parameters"],
        "package": receipt["packages"],
    }
    return "\n\n".join([text, *(_format_table((title, ""), rows) for title, rows in facts.items() if rows)])


def _write_evaluation(evaluation: Mapping[str, Any]) -> str:
    if not evaluation:
        return "This version was not evaluated on held-out problems."
    tasks = {None: "held-out tasks", "persona": "held-out problems, with a simulated user"}
    about = tasks.get(evaluation["of"], f"held-out tasks of the `{evaluation['of']}` environment")
    count = f"{evaluation['count']} " if evaluation["count"] is not None else ""
    rows = {
        MEASURES.get(name, name): f"{before:.3g} | {after:.3g}"
        for name, (before, after) in evaluation["measures"].items()
    }
    return f"On {count}{about}, by the run itself.\n\n" + _format_table(("share of", "before", "after"), rows)


def _format_table(head: tuple[str, ...], rows: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(
        [*lines, *(f"| {str(name).replace('_', ' ')} | {_format_cell(value)} |" for name, value in rows.items())]
    )


def _format_cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _write_licence(base: Mapping[str, Any]) -> str:
    if base["licence"]:
        return f"That of the base model: `{base['licence']}`."
    return "That of the base model, which was not found on the machine that made this card: look it up before use."


_PRIVACY = (
    "This repository holds weights, tokenizer, this card and a receipt of figures; no message, prompt or hint of any "
    "conversation, and no setting or key of the machine it was trained on. Weights can still remember what they were "
    "trained on: share a policy only if the people who talked with it agree."
)
