"""Environments lent over HTTP: what a remote one observes, leases, and what is carried out once."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from gateway_rig import ServerThread, wait_until
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import Composite, NonTensor, Unbounded
from torchrl.envs.utils import check_env_specs

from clawrl_trl.cli.main import main as run_clawrl
from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start
from clawrl_trl.envs.base.message import Action
from clawrl_trl.envs.pool.pool import EnvironmentBusy, EnvPool, NoSuchLease, PoolFull, StepOutOfOrder
from clawrl_trl.envs.pool.remote import RemoteEnv
from clawrl_trl.envs.pool.server import make_app
from clawrl_trl.envs.pool.wire import describe_spec, make_spec, pack, unpack
from clawrl_trl.errors import UserError
from clawrl_trl.gateway.auth import Keys


@dataclass(frozen=True)
class Goal:
    """Reach `total`."""

    id: str
    total: int


class SumEnv(AgentEnv[Goal]):
    """Adds up the actions; "stop" ends it. It has a picture of its own and minds which thread calls it."""

    def __init__(self) -> None:
        super().__init__([Goal("three", 3), Goal("five", 5)], max_steps=5)
        self.observation_spec["picture"] = Unbounded(shape=(2, 2), dtype=torch.uint8)
        self.thread: int | None = None
        self.total = 0
        self.worlds = 0
        self.hold: threading.Event | None = None
        self.held = threading.Event()

    def begin(self, task: Goal) -> Start:
        self.thread = self.thread or threading.get_ident()
        self.total = 0
        self.worlds += 1
        return Start([{"role": "user", "content": f"make {task.total}"}])

    def act(self, action: Action) -> Effect:
        assert self.thread == threading.get_ident()
        if self.hold is not None:
            self.held.set()
            self.hold.wait(30)
        if action.text == "stop":
            return Effect([], ended=True)
        self.total += int(action.text)
        return Effect([f"now {self.total}"])

    def evaluate(self) -> float:
        return 1.0 if self.total == self.task.total else -1.0

    def finish(self) -> None:
        self.worlds -= 1

    def observe_more(self) -> dict[str, Any]:
        return {"picture": torch.full((2, 2), self.total, dtype=torch.uint8)}


class LentPool:
    """A pool over HTTP; `made` holds the environments that it made."""

    def __init__(self, size: int = 2, keys: Keys | None = None, **options: Any) -> None:
        self.made: list[SumEnv] = []
        self.pool = EnvPool(self._make, size, **options)
        self.server = ServerThread(make_app(self.pool, keys or Keys())).start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _make(self) -> SumEnv:
        self.made.append(SumEnv())
        return self.made[-1]


@pytest.fixture
def lent() -> Iterator[LentPool]:
    lent = LentPool()
    yield lent
    lent.server.stop()
    assert all(env.worlds == 0 for env in lent.made), "every world is taken down"


def act(env: RemoteEnv, state: Any, text: str) -> Any:
    return env.step(state.set("action", text))["next"]


def test_a_remote_environment_is_one(lent: LentPool) -> None:
    env = RemoteEnv(lent.url)
    check_env_specs(env, break_when_any_done="both", seed=0)
    env.close()


def test_an_episode_elsewhere_is_the_episode(lent: LentPool) -> None:
    env = RemoteEnv(lent.url, first_task=1)
    state = env.reset()
    assert (state["task_id"], state["message"]) == ("five", "make 5")
    state = act(env, state, "5")
    assert state["message"] == "now 5" and state["picture"].tolist() == [[5, 5], [5, 5]]
    assert state["reward"].item() == 0.0 and state["outcome"].isnan()
    state = act(env, state, "stop")
    assert state["terminated"] and state["reward"].item() == 1.0
    assert env.reset(TensorDict({"next_task": torch.tensor([0])}, batch_size=()))["task_id"] == "three"
    env.close()


def test_concluding_ends_an_episode_and_may_be_repeated(lent: LentPool) -> None:
    env = RemoteEnv(lent.url, first_task=0)
    act(env, env.reset(), "3")
    for _ in range(2):
        ended = env.conclude()
        assert ended["truncated"] and ended["outcome"].item() == 1.0
    env.close()


def test_a_step_is_carried_out_once(lent: LentPool) -> None:
    pool = lent.pool
    lease = pool.allocate()
    pool.reset(lease, 1)
    first = pool.step(lease, 1, "2")
    assert pool.step(lease, 1, "2") == first and lent.made[-1].total == 2
    for number in (3, 5):
        with pytest.raises(StepOutOfOrder):
            pool.step(lease, number, "2")
    assert pool.step(lease, 2, "2")["message"] == "now 4"
    pool.close(lease)


def test_leases(lent: LentPool) -> None:
    pool = lent.pool
    leases = [pool.allocate() for _ in range(2)]
    with pytest.raises(PoolFull):
        pool.allocate()
    assert pool.get_status()["lent"] == 2
    pool.close(leases[0])
    with pytest.raises(NoSuchLease):
        pool.reset(leases[0])
    with pytest.raises(NoSuchLease):
        pool.heartbeat("nonsense")
    wait_until(lambda: _can_allocate(pool))


def _can_allocate(pool: EnvPool) -> bool:
    try:
        return bool(pool.allocate())
    except PoolFull:
        return False


def test_a_lease_that_is_silent_runs_out_and_its_world_goes() -> None:
    lent = LentPool(size=1, idle_s=0.05)
    lease = lent.pool.allocate()
    lent.pool.reset(lease)
    assert lent.made[0].worlds == 1
    wait_until(lambda: lent.pool.get_status()["lent"] == 0)
    wait_until(lambda: lent.made[0].worlds == 0)
    with pytest.raises(NoSuchLease):
        lent.pool.step(lease, 1, "1")
    lent.server.stop()


def test_a_lost_lease_drops_the_episode_and_the_next_one_begins_anew(lent: LentPool) -> None:
    env = RemoteEnv(lent.url, first_task=0)
    state = env.reset()
    assert env._lease is not None
    lent.pool.close(env._lease)
    state = act(env, state, "3")
    assert state["dropped"] and state["done"] and state["reward"].isnan() and "no such lease" in state["reason"]
    assert env.reset()["task_id"] == "five"
    env.close()


def test_a_step_that_is_asked_for_again_while_it_runs_is_waited_for(
    lent: LentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = lent.pool
    lease = pool.allocate()
    pool.reset(lease, 1)
    world, find_slot = lent.made[0], pool._find_slot
    world.hold = threading.Event()
    with ThreadPoolExecutor(1) as caller:
        first = caller.submit(pool.step, lease, 1, "2")
        assert world.held.wait(30)
        with pytest.raises(EnvironmentBusy, match="still busy"):
            pool.step(lease, 2, "2")

        def release_and_find(lease: str) -> Any:
            world.hold.set()
            return find_slot(lease)

        monkeypatch.setattr(pool, "_find_slot", release_and_find)
        assert pool.step(lease, 1, "2") == first.result(30)
    assert world.total == 2
    pool.close(lease)


def test_a_server_that_fails_in_a_step_drops_the_episode_and_has_its_place_back(lent: LentPool) -> None:
    env = RemoteEnv(lent.url, first_task=0)
    state = act(env, env.reset(), "1")
    lent.pool.reset(env._lease, 0)
    state = act(env, state, "1")
    assert state["dropped"] and state["done"] and state["reward"].isnan() and "409" in state["reason"]
    assert lent.pool.get_status()["lent"] == 0
    env.close()


def test_a_server_that_fails_in_a_reset_drops_the_episode(lent: LentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    env = RemoteEnv(lent.url, first_task=0)
    monkeypatch.setattr(lent.pool, "make_env", lambda: 1 / 0)
    state = env.reset()
    assert state["dropped"] and not state["done"] and "500" in state["reason"] and state["session_id"]
    assert lent.pool.get_status()["lent"] == 0
    assert act(env, state, "1")["done"]
    monkeypatch.undo()
    assert not env.reset()["dropped"]
    env.close()


def test_a_stuck_environment_is_given_up() -> None:
    lent = LentPool(size=1, call_s=0.2)
    lease = lent.pool.allocate()
    lent.pool.reset(lease)
    lent.made[0].hold = threading.Event()
    with pytest.raises(EnvironmentBusy):
        lent.pool.step(lease, 1, "1")
    again = lent.pool.allocate()
    assert lent.pool.reset(again)["step"]["shape"] == [1] and len(lent.made) == 2
    lent.made[0].hold.set()
    lent.server.stop()


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="can't be reached"):
        RemoteEnv("http://127.0.0.1:9", patience=0.1)


def test_keys() -> None:
    lent = LentPool(keys=Keys(chat=("env-key",)))
    with pytest.raises(UserError, match="refuses the key"):
        RemoteEnv(lent.url, key="wrong")
    env = RemoteEnv(lent.url, key="env-key")
    assert not env.reset()["done"]
    env.close()
    assert httpx.get(f"{lent.url}/status").status_code == 401
    lent.server.stop()
    with pytest.raises(UserError, match="set a key first"):
        Keys().check_bind("0.0.0.0")


@pytest.mark.parametrize("path", ["/reset", "/step", "/evaluate", "/heartbeat", "/close"])
def test_bad_calls(lent: LentPool, path: str) -> None:
    with httpx.Client(base_url=lent.url) as http:
        assert http.post(path, content=b"{nonsense").status_code == 400
        assert http.post(path, json={"lease": 3}).status_code == 400
        body = {"lease": "x", **({"number": 1, "action": "1"} if path == "/step" else {})}
        answer = http.post(path, json=body)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "lease_not_found"


@given(
    st.text(),
    st.lists(st.floats(width=32), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_observations_arrive_as_they_were(text: str, numbers: list[float], flags: list[bool]) -> None:
    state = TensorDict({"text": text, "numbers": torch.tensor(numbers), "flags": torch.tensor(flags)}, batch_size=())
    again = unpack(pack(state))
    assert again["text"] == text
    torch.testing.assert_close(again["numbers"], state["numbers"], rtol=0, atol=0, equal_nan=True)
    assert again["flags"].tolist() == flags


def test_specs_arrive_as_they_were() -> None:
    spec = SumEnv().observation_spec
    again = make_spec(describe_spec(spec))
    assert isinstance(again, Composite) and isinstance(again["message"], NonTensor)
    assert again["picture"].shape == (2, 2) and again["picture"].dtype == torch.uint8
    assert set(again.keys()) == set(spec.keys())


@pytest.mark.slow
def test_the_command_lends_until_it_is_told_to_stop() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "env-server", "--env", "toolcall", "--difficulty", "1"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--size", "1"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        env = RemoteEnv(re.findall(r"http://[\w.:]+", first_line)[0], first_task=0)
        state = env.reset()
        assert state["message"] and state["tools"] != "[]" and not state["dropped"], state["reason"]
        env.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGINT, 130), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "gui", "--host", "0.0.0.0"], "CLAWRL_ENV_KEY"),
        (["--env", "terminal", "--tasks", "nowhere"], "no such file or folder"),
    ],
)
def test_mistakes_of_the_command_are_one_line(
    flags: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["clawrl", "env-server", *flags])
    with pytest.raises(SystemExit) as ended:
        run_clawrl()
    told = capsys.readouterr().err
    assert ended.value.code == 2 and words in told and len(told.splitlines()) == 1
