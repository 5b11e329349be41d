"""The actor against a server that behaves and one that does not: every failure is seen, counted and survived."""

from functools import partial
from typing import Any

import pytest
from scripted_server import BOLD, PLAIN

from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.chat.env import ChatEnv
from clawrl_trl.errors import UserError

ASK = [{"role": "user", "content": "5 + 7?"}]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_reply(scripted, share: float) -> None:
    server = scripted()
    actor = GatewayPolicy(server.base_url, api_key="secret", stream_share=share, sampling={"max_tokens": 9})
    reply = actor.reply(ASK, session_id="s-1", seed=4)
    assert reply.text.strip() == BOLD
    assert reply.policy_version == 3
    assert (reply.ttft_s is not None) == (share == 1.0)
    assert reply.ttft_s is None or 0 < reply.ttft_s <= reply.total_s
    request = server.seen[0]
    assert request["headers"]["x-session-id"] == "s-1"
    assert request["headers"]["authorization"] == "Bearer secret"
    assert "x-turn-type" not in request["headers"]
    assert (request["body"]["max_tokens"], request["body"]["seed"], request["body"]["model"]) == (9, 4, "clawrl")


def test_rollout_is_one_session(scripted) -> None:
    server = scripted()
    actor = GatewayPolicy(server.base_url.removesuffix("/v1"))
    env = ChatEnv("student")
    rollout = env.rollout(9, actor)
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 1.0, 0.0]
    assert rollout["policy_version"].flatten().tolist() == [3, 3, 3]
    assert {request["headers"]["x-session-id"] for request in server.seen} == {env.session_id}
    assert [len(request["body"]["messages"]) for request in server.seen] == [1, 3, 5]


def test_both_ways_of_asking_are_used(scripted) -> None:
    server = scripted()
    actor = GatewayPolicy(server.base_url, stream_share=0.5)
    for number in range(20):
        actor.reply(ASK, session_id=str(number))
    streamed = [bool(request["body"].get("stream")) for request in server.seen]
    assert 4 <= sum(streamed) <= 16
    again = GatewayPolicy(server.base_url, stream_share=0.5)
    for number in range(20):
        again.reply(ASK, session_id=str(number))
    assert [bool(request["body"].get("stream")) for request in server.seen[20:]] == streamed


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_error_is_counted_once_and_the_chat_goes_on(scripted, share: float) -> None:
    server = scripted(lambda messages, number: 500 if number in (1, 3) else PLAIN)
    actor = GatewayPolicy(server.base_url, stream_share=share)
    rollout = ChatEnv("student").rollout(9, actor)
    assert (actor.requests, actor.failures) == (4, 2)
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert rollout["next", "terminated"][-1].item()
    conversations = [request["body"]["messages"] for request in server.seen]
    assert conversations[0] == conversations[1] and conversations[2] == conversations[3]


def test_a_reply_that_is_cut_off_has_not_arrived(scripted) -> None:
    server = scripted(lambda messages, number: "Tom has…")
    actor = GatewayPolicy(server.base_url, stream_share=1.0)
    assert actor.reply(ASK, session_id="s").failed
    assert actor.failures == 1


def test_a_gateway_that_comes_back_elsewhere_is_found(scripted) -> None:
    first = scripted()
    where = [first.base_url]
    actor = GatewayPolicy(lambda: where[0], stream_share=0.0, patience=30)
    assert actor.reply(ASK, session_id="s").text == BOLD
    first.close()
    second = scripted()
    where[0] = second.base_url
    actor.client.close()
    replies = [GatewayPolicy(lambda: where[0]).reply(ASK, session_id="s").failed]
    assert replies == [False]


def test_a_gateway_that_stays_away_is_a_clear_error(scripted) -> None:
    server = scripted()
    server.close()
    actor = GatewayPolicy(server.base_url, patience=0.0)
    with pytest.raises(UserError, match="clawrl serve"):
        actor.reply(ASK, session_id="s")
    assert actor.failures == 1


@pytest.mark.parametrize(("status", "words"), [(401, "CLAWRL_API_KEY"), (403, "CLAWRL_API_KEY"), (404, "no model")])
def test_what_only_a_person_can_remedy_is_raised(scripted, status: int, words: str) -> None:
    server = scripted(lambda messages, number: status)
    with pytest.raises(UserError, match=words):
        GatewayPolicy(server.base_url).reply(ASK, session_id="s")


TOO_LONG = "This model's maximum context length is 64 tokens. However, your request has 70 input tokens."


@pytest.mark.parametrize(
    ("answer", "refusal", "too_long"),
    [
        ((400, TOO_LONG), TOO_LONG, True),
        ((400, "The decoder prompt is longer than the maximum model length of 64."), None, True),
        ((413, "The body is larger than 8 MiB."), None, True),
        ((422, "tools: too deep."), "tools: too deep.", False),
        ((429, "slow down"), "", False),
        ((500, "maximum context length"), "", False),
    ],
)
def test_a_request_that_is_no_use_to_repeat_is_told(
    scripted, answer: Any, refusal: str | None, too_long: bool
) -> None:
    reply = GatewayPolicy(scripted(lambda messages, number: answer).base_url).reply(ASK, session_id="s")
    assert reply.failed and reply.action == "" and reply.too_long == too_long
    assert reply.refusal == (answer[1] if refusal is None else refusal)


def test_own_generation(scripted) -> None:
    server = scripted()

    def twice(client, model, messages, **sampling):
        ask = partial(client.chat.completions.create, model=model, messages=messages, **sampling)
        ask()
        return ask()

    reply = GatewayPolicy(server.base_url, generate=twice).reply(ASK, session_id="s-9")
    assert (reply.text, reply.policy_version) == (BOLD, 3)
    assert [request["headers"]["x-session-id"] for request in server.seen] == ["s-9"] * 2
