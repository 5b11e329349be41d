"""New versions take over between requests, and nobody's request breaks."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_rig import ENGINE_KEY, Rig, ScriptedEngine, ServerThread, pauses, publish, running, serves, wait_until
from starlette.responses import Response

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.gateway.policies.router import PolicyRouter
from clawrl_trl.ledger import Ledger, events, policies

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def ask(rig: Rig, model: str = "clawrl", **more: Any) -> str:
    with rig.client() as http:
        answer = http.post(CHAT, json={"messages": HELLO, "model": model, **more})
        assert answer.status_code == 200, answer.text
        return answer.headers["x-clawrl-policy-version"]


def test_new_requests_take_the_new_version(rig: Rig) -> None:
    assert ask(rig) == "0"
    publish(rig.ledger, 1)
    serves(rig, 1)
    assert rig.engine.loaded["policy-v1"].endswith("policies/policy-v1")
    assert ask(rig) == "1"
    assert rig.engine.requests[-1]["model"] == "policy-v1"
    assert ask(rig, "base") == "0" and rig.engine.requests[-1]["model"] == "base"
    assert ask(rig, "policy-v1") == "1"
    names = [model.id for model in openai.OpenAI(base_url=rig.url, api_key="x").models.list()]
    assert names == ["clawrl", "base", "policy-v1"]
    assert [turn.policy_version for turn in rig.turns()] == [0, 1, 0, 1]


def test_a_request_in_flight_keeps_its_version(tmp_path: Path) -> None:
    with running(tmp_path, keep_policies=0) as rig:
        publish(rig.ledger, 1)
        serves(rig, 1)
        rig.engine.script.append(pauses(("one",), ("two",)))
        client = openai.OpenAI(base_url=rig.url, api_key="x", max_retries=0)
        stream = client.chat.completions.create(model="clawrl", messages=HELLO, stream=True)  # type: ignore[call-overload]
        next(iter(stream))
        publish(rig.ledger, 2)
        serves(rig, 2)
        assert ask(rig) == "2"
        assert "policy-v1" in rig.engine.loaded
        rig.engine.go_on.set()
        list(stream)
        wait_until(lambda: "policy-v1" not in rig.engine.loaded)
        assert sorted(turn.policy_version for turn in rig.turns()) == [1, 2]
        assert rig.client().post(CHAT, json={"messages": HELLO, "model": "policy-v1"}).status_code == 404


def test_kept_versions_and_no_others_stay_reachable(tmp_path: Path) -> None:
    with running(tmp_path, keep_policies=2) as rig:
        for version in range(1, 6):
            publish(rig.ledger, version)
            serves(rig, version)
        assert rig.gateway.policies.names() == ["clawrl", "base", "policy-v3", "policy-v4", "policy-v5"]
        wait_until(lambda: set(rig.engine.loaded) == {"policy-v3", "policy-v4", "policy-v5"})
        assert ask(rig, "policy-v3") == "3"


def test_rollback(rig: Rig) -> None:
    for version in (1, 2):
        publish(rig.ledger, version)
        serves(rig, version)
    with rig.ledger.transaction() as tx:
        policies.promote(tx, 1)
    serves(rig, 1)
    assert ask(rig) == "1"
    with rig.ledger.transaction() as tx:
        policies.promote(tx, 0)
    serves(rig, 0)
    assert ask(rig) == "0" and ask(rig, "policy-v2") == "2"


def test_a_version_that_cannot_be_loaded_leaves_the_old_one(rig: Rig) -> None:
    rig.engine.refuse_load = True
    publish(rig.ledger, 1)

    def logged() -> bool:
        with rig.ledger.reader() as tx:
            return any(event.kind == "policy_load_failed" for event in events.of(tx, "1"))

    wait_until(logged)
    assert ask(rig) == "0"
    publish(rig.ledger, 2)
    rig.engine.refuse_load = False
    serves(rig, 2)
    assert ask(rig) == "2"


def test_an_engine_that_forgot_its_adapters_gets_them_back(rig: Rig) -> None:
    publish(rig.ledger, 1)
    serves(rig, 1)
    rig.engine.loaded.clear()
    assert ask(rig) == "1"
    rig.engine.loaded.clear()
    assert ask(rig, stream=True) == "1"


def test_a_foreign_engines_name_for_its_model_is_known_before_the_first_look(tmp_path: Path) -> None:
    """A request may come before the follower has looked at anything."""

    async def asked(rig: Rig) -> str:
        async with EngineClient(rig.engine_url, ENGINE_KEY, timeout=30) as engine:
            made = PolicyRouter(rig.ledger, rig.gateway.writer, engine, aliases=["clawrl"], keep=0, folder=tmp_path)
            made.start()
            return await made.ensure(made.serving)

    with running(tmp_path, engine=ScriptedEngine(base="somebody/elses-model")) as rig:
        assert asyncio.run(asked(rig)) == "somebody/elses-model"
        assert ask(rig) == "0"


def test_after_a_restart_the_serving_version_serves_at_once(tmp_path: Path) -> None:
    def trained(ledger: Ledger) -> None:
        publish(ledger, 1)
        publish(ledger, 2)

    with running(tmp_path, before=trained) as rig:
        assert ask(rig) == "2"
        assert ask(rig, "policy-v1") == "1"


def test_another_runs_adapter_is_neither_served_nor_unloaded(tmp_path: Path) -> None:
    """A vLLM that outlives its run has the names of the run before."""
    theirs = {f"policy-v{number}": f"/another/run/policies/policy-v{number}" for number in (1, 2)}
    with running(tmp_path, keep_policies=0, engine=ScriptedEngine(loaded=dict(theirs))) as rig:
        publish(rig.ledger, 1)
        publish(rig.ledger, 2)

        def refusals() -> list[str]:
            with rig.ledger.reader() as tx:
                return [one.data["message"] for one in events.of(tx, "2") if one.kind == "policy_load_failed"]

        wait_until(lambda: bool(refusals()))
        assert "/another/run/policies/policy-v2" in refusals()[0] and "restart the engine" in refusals()[0]
        assert ask(rig) == "0" and rig.engine.requests[-1]["model"] == "base"
        for version in (3, 4):
            publish(rig.ledger, version)
            serves(rig, version)
        wait_until(lambda: "policy-v3" in rig.engine.unloaded)
        assert rig.engine.unloaded == ["policy-v3"]
        assert rig.engine.loaded.items() >= theirs.items()


def test_leases_end_with_their_requests(rig: Rig) -> None:
    ask(rig)
    wait_until(lambda: not rig.gateway.policies.leases)
    assert rig.gateway.in_flight == 0


def test_silent_sessions_expire(tmp_path: Path) -> None:
    with running(tmp_path, session_timeout=0.4) as rig:
        with rig.client() as http:
            http.post(CHAT, json={"messages": HELLO}, headers={"X-Session-Id": "s", "X-Turn-Type": "main"})
        wait_until(lambda: rig.turn().state == "expired")


@pytest.mark.parametrize("stream", [False, True])
def test_many_requests_across_many_updates(rig: Rig, stream: bool) -> None:
    """Forty requests at once while eight versions are published: none fails, each is stored under its version."""

    async def main() -> list[int]:
        client = openai.AsyncOpenAI(base_url=rig.url, api_key="x", max_retries=0, timeout=60)

        async def one(number: int) -> int:
            raw = await client.chat.completions.with_raw_response.create(
                model="clawrl",
                messages=[{"role": "user", "content": f"question {number}"}],
                stream=stream,
            )
            parsed = raw.parse()
            if stream:
                async for _ in parsed:  # type: ignore[attr-defined]
                    pass
            return int(raw.headers["x-clawrl-policy-version"])

        async def train() -> None:
            for version in range(1, 9):
                await asyncio.to_thread(publish, rig.ledger, version)

        answers = await asyncio.gather(*(one(number) for number in range(40)), train())
        await client.close()
        return [answer for answer in answers if answer is not None]

    versions = asyncio.run(main())
    assert len(versions) == 40
    wait_until(lambda: rig.gateway.in_flight == 0)
    assert sorted(turn.policy_version or 0 for turn in rig.turns()) == sorted(versions)


def test_an_engine_with_raw_log_probs_is_noticed(tmp_path: Path) -> None:
    with running(tmp_path, engine=ScriptedEngine(raw_logprobs=True)) as rig:
        wait_until(lambda: not rig.gateway.policies.sampled_logprobs)
        ask(rig, temperature=0.7)
        ask(rig, temperature=1.0)
        cool, plain = rig.turns()
    assert plain.trainable and not cool.trainable
    assert cool.untrainable_reason == "sampled at temperature 0.7, log-probs reported for temperature 1"


def test_which_log_probs_these_are_is_known_before_the_first_request_and_asked_again(tmp_path: Path) -> None:
    async def known(rig: Rig) -> list[bool | None]:
        async with EngineClient(rig.engine_url, ENGINE_KEY, timeout=30) as engine:
            made = PolicyRouter(rig.ledger, rig.gateway.writer, engine, aliases=["clawrl"], keep=0, folder=tmp_path)
            made.start()
            answers = [made.sampled_logprobs]
            await made.ensure(made.serving)
            answers.append(made.sampled_logprobs)
            rig.engine.raw_logprobs = True  # another engine took its place
            await made.reload(made.serving)
            return [*answers, made.sampled_logprobs]

    with running(tmp_path) as rig:
        assert asyncio.run(known(rig)) == [None, True, False]


@dataclass
class Thoughtful(ScriptedEngine):
    """An engine that tells what log-probs it has when a test lets it."""

    asked: threading.Event = field(default_factory=threading.Event)
    tells: threading.Event = field(default_factory=threading.Event)

    async def _probed(self, temperature: float) -> Response:
        self.asked.set()
        await asyncio.to_thread(self.tells.wait, 30)
        return await super()._probed(temperature)


def test_no_request_is_sent_while_the_engine_is_asked_about_its_log_probs(tmp_path: Path) -> None:
    engine = Thoughtful()
    server = ServerThread(engine.app()).start()

    async def known(rig: Rig) -> bool | None:
        async with EngineClient(f"http://127.0.0.1:{server.port}", ENGINE_KEY, timeout=30) as client:
            made = PolicyRouter(rig.ledger, rig.gateway.writer, client, aliases=["clawrl"], keep=0, folder=tmp_path)
            made.start()
            first = asyncio.create_task(made.ensure(made.serving))
            assert await asyncio.to_thread(engine.asked.wait, 30)
            second = asyncio.create_task(made.ensure(made.serving))
            await asyncio.sleep(0)
            early = second.done()
            engine.tells.set()
            await asyncio.gather(first, second)
            assert not early
            return made.sampled_logprobs

    try:
        with running(tmp_path) as rig:
            assert asyncio.run(known(rig))
    finally:
        engine.tells.set()
        server.stop()


@pytest.mark.parametrize(("known", "reported"), [(None, "unknown yet"), (False, "reported for temperature 1")])
def test_what_counts_is_what_is_known_when_the_turn_is_written(rig: Rig, known: bool | None, reported: str) -> None:
    rig.engine.script.append(pauses(("one",), ("two",)))
    client = openai.OpenAI(base_url=rig.url, api_key="x", max_retries=0)
    stream = client.chat.completions.create(model="clawrl", messages=HELLO, stream=True, temperature=0.7)  # type: ignore[call-overload]
    next(iter(stream))
    rig.gateway.policies._probe = asyncio.Event().wait  # type: ignore[method-assign] # nobody finds out before the end
    rig.gateway.policies.sampled_logprobs = known
    rig.engine.go_on.set()
    list(stream)
    assert reported in (rig.turn().untrainable_reason or "")


def test_a_serving_version_without_its_folder_is_our_fault(tmp_path: Path) -> None:
    engine = ScriptedEngine(refuse_load=True)
    with running(tmp_path, engine=engine, before=lambda ledger: publish(ledger, 1)) as rig, rig.client() as http:
        answer = http.post(CHAT, json={"messages": HELLO})
        assert answer.status_code == 503
        assert "policy version 1" in answer.json()["error"]["message"]
