"""What our vLLM server says when vLLM has renamed something that it needs."""

from types import SimpleNamespace

import pytest

from clawrl_trl.engines.vllm import compat


def test_a_missing_name_says_which_and_what_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda package: "0.32.1")
    server = SimpleNamespace(engine_client=SimpleNamespace(), openai_serving_models=SimpleNamespace())
    with pytest.raises(compat.VLLMVersionError, match=r"vLLM 0\.32\.1 has no SimpleNamespace\.model_config.*pip inst"):
        compat.ApiServer(server)


def test_a_missing_module_says_so_too() -> None:
    with pytest.raises(compat.VLLMVersionError, match=r"has no clawrl_trl\.no_such_module, which clawrl-trl needs"):
        compat._import("clawrl_trl.no_such_module")


@pytest.mark.parametrize(("version", "warns"), [("0.31.0", False), ("0.31.4+cpu", False), ("0.310.0", True)])
def test_an_untried_version_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, warns: bool
) -> None:
    monkeypatch.setattr(compat, "version", lambda package: version)
    compat.warn_if_untried()
    assert bool(caplog.records) == warns
