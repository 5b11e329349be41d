"""What the embedded engine does about policies beyond the dialect: more kinds of them, and a closer look."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_checks import reference_model
from engine_server import Server
from engine_updates import ASK, CHAT, TOLD, assert_sampled_from, load, names, unload
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize("kind", ["dora", "full"])
def test_every_kind_of_policy_samples_from_its_own_weights(server: Server, model_folder: Path, kind: str) -> None:
    base, folder = model_folder / "base", model_folder / kind
    model = reference_model(folder) if kind == "full" else reference_model(base, folder)
    with server.http() as http:
        assert load(http, f"kind-{kind}", folder).is_success
        reply = http.post(CHAT, json={**ASK, **TOLD, "model": f"kind-{kind}", "max_tokens": 20, "seed": 1}).json()
        unload(http, f"kind-{kind}")
    assert_sampled_from(model, reply)


def _nan(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    weights[next(iter(weights))][0, 0] = float("nan")
    save_file(weights, folder / "adapter_model.safetensors")


def _rank(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"r": 16}))


def _other_base(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    path = folder / "adapter_model.safetensors"
    save_file({name.replace("layers.1.", "layers.9."): value for name, value in weights.items()}, path)


@pytest.mark.parametrize("damage", [_nan, _rank, _other_base])
def test_weights_that_are_no_numbers_or_do_not_fit_are_refused(
    server: Server, model_folder: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(model_folder / "one", folder)
    damage(folder)
    with server.http() as http:
        refused = load(http, "damaged", folder)
        assert refused.status_code == 400
        assert "damaged" in refused.json()["error"]["message"]
        assert "damaged" not in names(http)


def test_a_full_model_with_nan_is_refused(server: Server, model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder / "full", tmp_path / "full")
    weights = load_file(tmp_path / "full" / "model.safetensors")
    weights[next(iter(weights))].view(-1)[0] = torch.inf
    save_file(weights, tmp_path / "full" / "model.safetensors", metadata={"format": "pt"})
    with server.http() as http:
        assert load(http, "sick", tmp_path / "full").status_code == 400
