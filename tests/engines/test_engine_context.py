"""How long a context is served when nobody says, and that everybody is told what the engine really takes."""

import json
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from engine_server import start_engine, stop_engine
from gateway_rig import publish, running, serves

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.engines.context import (
    choose_embedded_context,
    choose_vllm_context,
    count_cached_numbers,
    find_shortage,
    read_own_context,
)
from clawrl_trl.engines.vllm.server import Server
from clawrl_trl.engines.vllm.server_log import ServerLog
from clawrl_trl.serving.connection import describe_connection, describe_model
from clawrl_trl.tiny import MODEL_PATH

PLENTY = 2**40


def named(folder: Path, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def decoder(**config: Any) -> SimpleNamespace:
    usual = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36}
    return SimpleNamespace(**usual | config)


def test_a_models_own_limit_is_read_wherever_it_stands(tmp_path: Path) -> None:
    assert read_own_context(named(tmp_path / "plain", max_position_embeddings=40960)) == 40960
    assert read_own_context(named(tmp_path / "vision", text_config={"max_position_embeddings": 262144})) == 262144
    assert read_own_context(named(tmp_path / "silent", model_type="mamba")) is None
    assert read_own_context(str(MODEL_PATH)) == 8192


@pytest.mark.parametrize(
    ("own", "asked", "fit_memory", "value"),
    [
        (40960, None, False, "32768"),
        (40960, None, True, "auto"),
        (8192, None, False, "auto"),
        (None, None, False, "auto"),
        (40960, 40000, False, "40000"),
        (8192, 100_000, False, "100000"),
    ],
)
def test_what_vllm_is_asked_for(
    tmp_path: Path, own: int | None, asked: int | None, fit_memory: bool, value: str
) -> None:
    model = named(tmp_path / "model", **({"max_position_embeddings": own} if own else {}))
    settings = ServeSettings(run=str(tmp_path), engine="vllm", max_model_len=asked)
    assert choose_vllm_context(settings, model, fit_memory=fit_memory) == value
    command = Server(settings, model, fit_memory=fit_memory).command(1)
    assert command[command.index("--max-model-len") + 1] == value


def test_the_embedded_engine_takes_what_model_and_memory_allow() -> None:
    long = decoder(max_position_embeddings=40960)
    assert count_cached_numbers(long) == 2 * 36 * 8 * 128
    assert choose_embedded_context(long, None, itemsize=2, free=PLENTY) == 32768
    assert choose_embedded_context(long, 40000, itemsize=2, free=PLENTY) == 40000
    assert choose_embedded_context(long, 100_000, itemsize=2, free=PLENTY) == 40960
    assert choose_embedded_context(decoder(max_position_embeddings=8192), None, itemsize=2, free=PLENTY) == 8192
    # 3 GiB hold 10,922 tokens of 144 KiB in their half
    assert choose_embedded_context(long, None, itemsize=2, free=3 * 2**30) == 10240
    assert choose_embedded_context(long, 20_000, itemsize=2, free=3 * 2**30) == 20_000
    windowed = decoder(max_position_embeddings=131072, sliding_window=4096, layer_types=["sliding_attention"])
    assert choose_embedded_context(windowed, None, itemsize=2, free=PLENTY) == 32768


@pytest.mark.parametrize(("context", "short"), [(4096, True), (16383, True), (16384, False), (None, False)])
def test_an_agent_needs_room(context: int | None, short: bool) -> None:
    shortage = find_shortage(context, "Qwen/Qwen3-4B")
    assert (shortage is not None) is short
    if shortage is not None:
        assert "OpenClaw" in shortage[0] and "--max_model_len" in shortage[1]
        bundled = find_shortage(context, None)
        assert bundled is not None and "tour" in bundled[1] and "--model_name_or_path" in bundled[1]


def provider_of(text: str) -> dict[str, Any]:
    block, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    (model,) = block["models"]["providers"]["clawrl"]["models"]
    return dict(model)


def list_stated(url: str) -> set[int]:
    """The contexts that a gateway states, by the official client."""
    models = openai.OpenAI(base_url=url, api_key="x").models.list()
    return {model.model_extra["max_model_len"] for model in models if model.model_extra}


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "served"), [(None, 8192), (2048, 2048)])
def test_clients_are_told_what_the_engine_takes_and_took(tmp_path: Path, asked: int | None, served: int) -> None:
    process, engine = start_engine(tmp_path / "engine", model_name_or_path=str(MODEL_PATH), max_model_len=asked)
    try:
        client = EngineClient(engine.base_url, engine.key)
        with running(tmp_path / "run", engine_client=client, max_model_len=asked) as rig:
            assert list_stated(rig.url) == {served}
            help_text = describe_connection(ServeSettings(run=str(tmp_path), max_model_len=asked), rig.url)
            assert provider_of(help_text)["contextWindow"] == served
            assert provider_of(help_text)["maxTokens"] < served / 2
            assert "Context overflow" in help_text
            process.kill()
            process.wait(30)
            assert list_stated(rig.url) == {served}, "while the engine is away"
    finally:
        process.kill()
        process.wait(30)


TOO_SMALL = (
    "(EngineCore pid=9) ERROR 11-20 15:02:40 [core.py:1435] ValueError: To serve at least one request with the "
    "model's max seq len (32768), (4.5 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(1.0 GiB). Based on the available memory, the estimated maximum model length is 7280.\n"
)


def test_a_cache_too_small_is_told_from_other_ends(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(TOO_SMALL)
    log = ServerLog(path)
    assert not log.has_cache_too_small(), "of an earlier start"
    with path.open("a") as file:
        file.write("ValueError: something else\n")
    assert not log.has_cache_too_small()
    with path.open("a") as file:
        file.write(TOO_SMALL)
    assert log.has_cache_too_small()


@pytest.mark.slow
def test_the_start_says_which_model_a_remote_engine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, engine = start_engine(tmp_path / "engine", model_name_or_path=str(MODEL_PATH))
    monkeypatch.setenv("CLAWRL_ENGINE_KEY", engine.key)
    try:
        for url in (engine.base_url, f"{engine.base_url}/v1"):
            described = describe_model(ServeSettings(run=str(tmp_path), engine=url))
            assert described == f"{MODEL_PATH} ('base' of {url})"
    finally:
        stop_engine(process)
    assert describe_model(ServeSettings(run=str(tmp_path), engine="http://127.0.0.1:9")) == (
        "the model of http://127.0.0.1:9"
    )


def test_a_second_start_says_at_which_version_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path / "run") as rig:
        settings = ServeSettings(run=str(tmp_path))
        assert "going on" not in describe_connection(settings, rig.url)
        publish(rig.ledger, 1)
        publish(rig.ledger, 2)
        serves(rig, 2)
        assert f"at {rig.url}, going on from policy version 2\n" in describe_connection(settings, rig.url)


def test_a_model_without_a_chat_template_is_told_with_the_remedy(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    copytree(MODEL_PATH, bare, ignore=ignore_patterns("chat_template.jinja"))
    with running(tmp_path / "run") as rig:
        text = describe_connection(ServeSettings(run=str(tmp_path), model_name_or_path=str(bare)), rig.url)
        assert "no chat template" in text and "chat_template.jinja" in text and "instruct" in text
        assert "no chat template" not in describe_connection(ServeSettings(run=str(tmp_path)), rig.url)
