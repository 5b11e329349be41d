"""The live loop with a real vLLM: what is captured, what is in its log, thinking."""

from collections.abc import Iterator

import pytest
from live_run import LiveRun
from test_token_truth import *  # noqa: F403 - what holds for the embedded engine holds here
from test_token_truth import _ask as ask
from test_token_truth import _turn as stored
from transformers import AutoTokenizer

from clawrl_trl.tiny import MODEL_PATH

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("vllm live")]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """A run of the bundled model, served by vLLM; `test_token_truth` checks what it captures."""
    run = LiveRun(tmp_path_factory.mktemp("live"), "--port", "0", "--engine", "vllm").start()
    yield run
    assert run.stop() == 0


def test_what_vllm_does_is_in_its_log(live: LiveRun) -> None:
    said = (live.folder.logs / "engine.log").read_text().splitlines()
    assert said[-2].startswith("vLLM answers after") and said[-1].startswith("the KV cache takes")
    assert sum(line.startswith("vLLM after") for line in said) > 1
    assert "Route: /v1/chat/completions" in (live.folder.logs / "vllm.log").read_text()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_thinking_comes_and_goes_under_the_name_clients_know(live: LiveRun, stream: bool) -> None:
    said = {"role": "assistant", "reasoning_content": "They like pears best.", "content": "Pears?"}
    turn_id, message = ask(
        live,
        stream,
        messages=[{"role": "user", "content": "Guess."}, said, {"role": "user", "content": "How much is 2 + 3?"}],
        chat_template_kwargs={"enable_thinking": True},
    )
    assert message["reasoning_content"]
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    assert "They like pears best." in tokenizer.decode(stored(live, turn_id).prompt_ids)
