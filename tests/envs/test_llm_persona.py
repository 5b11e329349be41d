"""Users played by a language model: what the model is asked, what its answer does, and how it may fail."""

import json
import math
import pickle
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_server import BOLD, PLAIN, ScriptedServer, user_says
from tensordict import NonTensorStack, TensorDictBase
from torchrl.envs import ParallelEnv, check_env_specs

from clawrl_trl.envs.chat.env import ChatEnv
from clawrl_trl.envs.chat.evaluation import evaluate
from clawrl_trl.envs.chat.llm_persona import LLMPersona
from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.envs.chat.personas import PersonaGone, Student
from clawrl_trl.envs.chat.user_model import ATTEMPTS, MAX_TEXT, UserModel, parse_answer
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_worker import play
from clawrl_trl.errors import UserError

GOAL = "A name for a new bakery."
Script = Callable[[list[dict[str, str]], int], str | int]


def make_mia(server: ScriptedServer, **options: Any) -> LLMPersona:
    options = {"tastes": "no lists", **options}
    return LLMPersona("Mia", [GOAL], UserModel("user", server.base_url, key="secret", timeout=5), **options)


def make_policy(*replies: str) -> Callable[[TensorDictBase], TensorDictBase]:
    remaining = list(replies)
    return lambda td: td.set("action", remaining.pop(0) if len(remaining) > 1 else remaining[0])


def read_talk(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The conversation that the model was shown."""
    return json.loads(messages[1]["content"].partition("\n\n")[0])


def wants_short(messages: list[dict[str, str]], number: int) -> str:
    """A user who likes short replies, and is annoyed by the second long one."""
    talk = read_talk(messages)
    if not talk:
        return user_says("A name for my bakery, please.", "curious")
    if len(talk[-1]["content"]) < 20:
        return user_says("Lovely, thank you!", "pleased", True)
    return user_says("Too long.", "confused" if len(talk) < 4 else "annoyed")


def test_specs(scripted: Callable[..., ScriptedServer]) -> None:
    check_env_specs(ChatEnv(make_mia(scripted(wants_short))), break_when_any_done="both", seed=0)


def test_mood_reward_and_end_follow_the_model(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(wants_short)
    rollout = ChatEnv(make_mia(server), max_turns=4).rollout(9, make_policy(BOLD, BOLD, "Crumbs", "Bye!"))
    assert rollout["message"][0] == "A name for my bakery, please."
    assert [*rollout["mood"], rollout["next", "mood"][-1]] == ["curious", "confused", "annoyed", "pleased", "pleased"]
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 0.0, 1.0, 0.0]
    assert rollout["next", "correct"].flatten().tolist() == [False, False, True, True]
    assert rollout["next", "approved"].flatten().tolist() == [False, False, True, True]
    assert rollout["next", "terminated"][-1].item() and not rollout["next", "dropped"].any()
    assert len(server.seen) == 4, "one request for each message of the user"


def test_what_the_model_is_asked(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(wants_short)
    ChatEnv(make_mia(server)).rollout(2, make_policy(BOLD, "x" * 9000))
    first, second, third = (request["body"] for request in server.seen)
    assert server.seen[0]["headers"]["authorization"] == "Bearer secret"
    assert server.seen[0]["headers"]["x-turn-type"] == "side"
    assert first["model"] == "user" and first["max_tokens"] and first["response_format"]["type"] == "json_schema"
    prompts = [body["messages"][0]["content"] for body in (first, second, third)]
    assert all(GOAL in text and "no lists" in text for text in prompts)
    moods = [text.partition("mood at the moment: ")[2].partition("\n")[0] for text in prompts]
    assert moods == ["patient", "curious", "confused"]
    assert read_talk(second["messages"])[-1] == {"role": "assistant", "content": BOLD}
    talk = read_talk(third["messages"])
    assert [message["role"] for message in talk] == ["user", "assistant", "user", "assistant"]
    assert len(talk[-1]["content"]) < 7000


def test_sessions_of_one_persona_do_not_mix(scripted: Callable[..., ScriptedServer]) -> None:
    user = make_mia(scripted(wants_short))
    envs = [ChatEnv(user), ChatEnv(user)]
    states = [env.reset() for env in envs]
    assert envs[0].step(states[0].set("action", BOLD))["next", "mood"] == "confused"
    assert envs[1].step(states[1].set("action", "Crumbs"))["next", "mood"] == "pleased"
    assert user.mood == "patient"


@pytest.mark.parametrize(
    "babble",
    [
        "Thank you, that is great!",
        "{}",
        user_says(" "),
        user_says("x" * (MAX_TEXT + 1)),
        user_says("Fine.", "ecstatic"),
        '{"text": "Fine.", "mood": "pleased", "satisfied": "true"}',
        '{"text": "Fine.", "mood": "pleased", "satisfied": true, "reward": 1}',
        "I am done.\n" + user_says("Fine.", "pleased", True),
        500,
    ],
)
def test_a_model_that_fails_or_babbles_drops_the_episode(
    scripted: Callable[..., ScriptedServer], babble: str | int
) -> None:
    server = scripted(lambda messages, number: babble if read_talk(messages) else user_says("A name, please."))
    rollout = ChatEnv(make_mia(server)).rollout(9, make_policy("Crumbs"))
    assert len(rollout) == 1 and len(server.seen) == 1 + ATTEMPTS
    assert math.isnan(rollout["next", "reward"].item())
    assert rollout["next", "dropped"].item() and rollout["next", "truncated"].item()
    assert "the user's model" in rollout["next", "reason"][0]
    assert not rollout["next", "terminated"].any() and not rollout["next", "approved"].any()


def test_a_model_that_fails_at_once_drops_the_episode_at_its_first_step(
    scripted: Callable[..., ScriptedServer],
) -> None:
    env = ChatEnv(make_mia(scripted(lambda messages, number: 503)))
    check_env_specs(env, break_when_any_done="both", seed=0)
    state = env.reset()
    assert state["dropped"].item() and json.loads(state["conversation"]) == []
    rollout = env.rollout(9, make_policy("Hello?"))
    assert len(rollout) == 1 and rollout["next", "truncated"].item()
    assert math.isnan(rollout["next", "reward"].item())


def test_a_server_that_is_not_there_drops_the_episode(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(wants_short)
    server.close()
    with pytest.raises(PersonaGone, match="APIConnectionError"):
        make_mia(server).session().opening(make_mia(server).tasks(0, "train", 1)[0], random.Random(0))


def test_one_failure_is_forgiven(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(lambda messages, number: 500 if number % 2 else wants_short(messages, number))
    rollout = ChatEnv(make_mia(server)).rollout(9, make_policy("Crumbs", "Bye!"))
    assert rollout["next", "reward"].flatten().tolist() == [1.0, 0.0]


def test_a_server_without_constrained_output_is_asked_in_plain_words(scripted: Callable[..., ScriptedServer]) -> None:
    def refuses(messages: list[dict[str, str]], number: int) -> str | int:
        return 400 if "response_format" in server.seen[-1]["body"] else wants_short(messages, number)

    server = scripted(refuses)
    ChatEnv(make_mia(server)).rollout(9, make_policy("Crumbs", "Bye!"))
    assert ["response_format" in request["body"] for request in server.seen] == [True, False, False]


def test_an_answer_may_hold_a_thought_and_a_fence() -> None:
    answer = user_says("Fine.", "pleased", True)
    for form in (answer, f" {answer}\n", f"<think>Do I like it?</think>\n{answer}", f"```json\n{answer}\n```"):
        reply = parse_answer(form)
        assert reply is not None and (reply.text, reply.mood, reply.satisfied) == ("Fine.", "pleased", True)


def test_rules_decide_and_the_model_words_it(scripted: Callable[..., ScriptedServer]) -> None:
    def obeys(messages: list[dict[str, str]], number: int) -> str:
        prompt = messages[1]["content"]
        is_liked = "is to Mia's taste" in prompt
        return user_says(
            "Ok." if is_liked else "Hm.", "pleased" if is_liked else "annoyed", is_liked and bool(read_talk(messages))
        )

    server = scripted(obeys)
    env = ChatEnv(make_mia(server, rules=Student()), seed=3)
    env.persona.goals["train"] = ["Help with {question}"]
    answer = Student().tasks(3, "train", 1)[0].answer
    rollout = env.rollout(9, make_policy(BOLD, f"{PLAIN[:-3]} {answer}.", "Bye!"))
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 1.0, 0.0]
    assert rollout["next", "correct"].flatten().tolist()[1]
    assert Student().tasks(3, "train", 1)[0].question in server.seen[0]["body"]["messages"][0]["content"]
    assert "bold" in server.seen[1]["body"]["messages"][1]["content"]


def test_a_model_that_contradicts_the_rules_is_not_believed(scripted: Callable[..., ScriptedServer]) -> None:
    flatterer = scripted(lambda messages, number: user_says("Great!", "pleased", bool(read_talk(messages))))
    rollout = ChatEnv(make_mia(flatterer, rules=Student())).rollout(9, make_policy(BOLD))
    assert rollout["next", "dropped"].item() and math.isnan(rollout["next", "reward"].item())


def test_tasks_are_the_goals_and_a_longer_list_starts_with_the_shorter(
    scripted: Callable[..., ScriptedServer],
) -> None:
    model = UserModel("user", "http://127.0.0.1:9/v1")
    user = LLMPersona("Mia", ["a", "b", "c"], model, heldout=["d"])
    goals = [task.question for task in user.tasks(1, "train", 7)]
    assert goals[:4] == [task.question for task in user.tasks(1, "train", 4)]
    assert sorted(goals[:3]) == ["a", "b", "c"]
    assert {task.question for task in user.tasks(1, "heldout", 3)} == {"d"}


@pytest.mark.slow
def test_it_travels_to_processes(scripted: Callable[..., ScriptedServer]) -> None:
    user = make_mia(scripted(wants_short))
    ChatEnv(user).reset()  # its client is in use
    pickle.loads(pickle.dumps(user))
    env = ParallelEnv(2, [partial(ChatEnv, user)] * 2, use_buffers=False)
    try:
        rollout = env.rollout(2, lambda td: td.set("action", NonTensorStack("Crumbs", "Crumbs")))
    finally:
        env.close()
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[1.0, 0.0], [1.0, 0.0]]


# ---- from a file, through play and evaluate ----


@pytest.fixture
def described(tmp_path: Path) -> Callable[..., Path]:
    def write(server: ScriptedServer | None = None, **changes: Any) -> Path:
        url = "http://127.0.0.1:9/v1" if server is None else server.base_url
        content = {"name": "mia", "goal": GOAL, "model": "user", "base_url": url, **changes}
        path = tmp_path / "mia.yaml"
        path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
        return path

    return write


def test_a_persona_from_a_file(
    scripted: Callable[..., ScriptedServer], described: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_PERSONA_KEY", "from-the-environment")
    server = scripted(wants_short)
    path = described(server, mood="angry", sampling={"max_completion_tokens": 99, "seed": None})
    rollout = ChatEnv(str(path)).rollout(9, make_policy("Crumbs", "Bye!"))
    assert rollout["next", "reward"].flatten().tolist() == [1.0, 0.0]
    request = server.seen[0]
    assert request["headers"]["authorization"] == "Bearer from-the-environment"
    assert request["body"]["max_completion_tokens"] == 99
    assert not {"seed", "max_tokens", "temperature"} & set(request["body"])
    assert "moment: angry" in request["body"]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"api_key": "sk-1"}, "keys stay in the environment"),
        ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({"goal": None}, "goals"),
        ({"mood": "sad"}, "mood"),
        ({"rules": "parrot"}, "student or teacher"),
        ({"base_url": "localhost"}, "base_url"),
        ({"name": "Mia Müller"}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_file_is_one_line(described: Callable[..., Path], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as raised:
        persona(str(described(**changes)))
    assert "\n" not in str(raised.value)
    assert "sk-1" not in str(raised.value)


def test_the_persona_on_the_page_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "chat.md"
    file = tmp_path / "mia.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)[0])
    user = persona(str(file))
    assert isinstance(user, LLMPersona) and user.mood == "patient" and user.model.timeout == 60
    assert user.tasks(0, "heldout", 1)[0].question == "A name for her new bakery."


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        persona(str(tmp_path / "no.yaml"))


def test_playing_and_evaluating(
    scripted: Callable[..., ScriptedServer], described: Callable[..., Path], tmp_path: Path
) -> None:
    failures: list[int] = []

    def leaves_once(messages: list[dict[str, str]], number: int) -> str | int:
        if len(read_talk(messages)) == 2 and len(failures) < ATTEMPTS:
            failures.append(number)
            return 500
        return wants_short(messages, number)

    user, gateway = scripted(leaves_once), scripted(lambda messages, number: "Crumbs")
    options = PersonaOptions(persona=str(described(user)), interactions=3, think_time=0.0)
    rows = play(tmp_path, options, base_url=gateway.base_url)
    assert [row["first_score"] for row in rows] == [None, 1.0, 1.0]
    assert [row["scores"] for row in rows] == [[], [1.0], [1.0]]
    assert rows[0]["dropped"].startswith("the user's model failed") and rows[1]["dropped"] is None
    assert [row["correct"] for row in rows] == [None, True, True]
    assert "NaN" not in (tmp_path / "interactions.jsonl").read_text()

    report = evaluate(gateway.base_url, None, str(described(user)), problems=3)
    assert (report.score, report.correct, report.n) == (1.0, 1.0, 3)
    user.script = lambda messages, number: "babble"
    with pytest.raises(UserError, match="did not answer with JSON"):
        evaluate(gateway.base_url, None, str(described(user)), problems=2)
    requests = len(gateway.seen)
    options = PersonaOptions(persona=str(described(user)), interactions=1, think_time=0.0)
    (row,) = play(tmp_path / "other", options, base_url=gateway.base_url)
    assert row["dropped"] and len(gateway.seen) == requests, "where nothing was said, nothing is asked"
