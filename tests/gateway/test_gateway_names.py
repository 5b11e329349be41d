"""Agents insist on the names of their models: which names are served, under which API, and what an error tells."""

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from gateway_rig import Rig, publish, running, serves

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CLAUDE = "claude-sonnet-4-5"


def ask(rig: Rig, api: str, name: str) -> tuple[str, str]:
    """Ask by an API's own client; the name in the reply, and the policy version that answered."""
    if api == "anthropic":
        client = anthropic.Anthropic(base_url=rig.root, api_key="x", max_retries=0)
        raw: Any = client.messages.with_raw_response.create(model=name, max_tokens=9, messages=HELLO)
    else:
        official = openai.OpenAI(base_url=rig.url, api_key="x", max_retries=0)
        if api == "chat":
            raw = official.chat.completions.with_raw_response.create(model=name, messages=HELLO)
        elif api == "completions":
            raw = official.completions.with_raw_response.create(model=name, prompt="hello")
        else:
            raw = official.responses.with_raw_response.create(model=name, input="hello")
    return raw.parse().model, raw.headers["x-clawrl-policy-version"]


APIS = pytest.mark.parametrize("api", ["chat", "completions", "responses", "anthropic"])


@pytest.mark.slow
@APIS
def test_each_of_several_names_means_the_newest_policy(tmp_path: Path, api: str) -> None:
    with running(tmp_path, served_model_name=f"clawrl, gpt-4o,{CLAUDE}") as rig:
        publish(rig.ledger, 1)
        serves(rig, 1)
        for name in ("clawrl", "gpt-4o", CLAUDE):
            assert ask(rig, api, name) == (name, "1")
        assert ask(rig, api, "base") == ("base", "0")
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)):
            ask(rig, api, "gpt-9")


@APIS
def test_any_name_means_the_newest_policy_where_that_was_asked_for(tmp_path: Path, api: str) -> None:
    with running(tmp_path, any_model_name=True) as rig:
        for version in (1, 2):
            publish(rig.ledger, version)
            serves(rig, version)
        for name in ("clawrl", CLAUDE, "vendor/model:free"):
            assert ask(rig, api, name) == (name, "2")
        assert ask(rig, api, "policy-v1") == ("policy-v1", "1")
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError), match="policy-v999"):
            ask(rig, api, "policy-v999")


def test_the_names_are_listed(tmp_path: Path) -> None:
    with running(tmp_path, served_model_name=f"clawrl,{CLAUDE},vendor/model", any_model_name=True) as rig:
        client = openai.OpenAI(base_url=rig.url, api_key="x", max_retries=0)
        assert [model.id for model in client.models.list()] == ["clawrl", CLAUDE, "vendor/model", "base"]
        for name in ("clawrl", CLAUDE, "vendor/model", "another/model"):
            assert client.models.retrieve(name).id == name
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("policy-v7")


def test_an_unknown_name_is_told_both_remedies_in_one_line(rig: Rig) -> None:
    with rig.client() as http:
        asked = {"messages": HELLO, "model": "gpt-4o"}
        message = http.post("/v1/chat/completions", json=asked).json()["error"]["message"]
        assert "--served_model_name clawrl,gpt-4o" in message and "--any_model_name" in message and "\n" not in message
        version = http.post("/v1/chat/completions", json=asked | {"model": "policy-v999"}).json()["error"]["message"]
        assert "--any_model_name" not in version
        long = http.post("/v1/chat/completions", json=asked | {"model": "x" * 100_000}).json()["error"]["message"]
        assert len(long) < 1000


@pytest.mark.parametrize("names", ["", " , ", "clawrl,base", "policy-v3"])
def test_names_with_a_meaning_of_their_own_are_refused(names: str) -> None:
    with pytest.raises(UserError, match="--served_model_name"):
        ServeSettings(served_model_name=names)


def test_several_names_are_told_apart_once() -> None:
    assert ServeSettings(served_model_name=" a, b,a,").model_names == ("a", "b")
    assert ServeSettings().model_names == ("clawrl",)
