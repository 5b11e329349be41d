"""An environment that lives in a pool on another machine.

`RemoteEnv` is to its user what the environment itself would be. It holds one lease and numbers its steps: when an
answer is lost it asks for the same step again, which the pool does not carry out twice. When the lease or the
server is gone, or the server fails, the episode ends as dropped and its environment is given back.
"""

import contextlib
import math
import uuid
from typing import Any

import httpx
import torch
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from clawrl_trl.envs.base.specs import set_step_specs
from clawrl_trl.envs.pool.wire import make_spec, pack, unpack
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json


class RemoteEnv(EnvBase):  # type: ignore[misc]
    """An environment lent by `clawrl env-server`.

    Its observations, action and reward are those of the environment that is lent, see
    [`clawrl_trl.envs.base.agent.AgentEnv`]; a dropped episode has NaN as reward.

    Args:
        url (`str`): The server, for example `http://127.0.0.1:18080`.
        key (`str`, *optional*): Its bearer key.
        first_task (`int`, *optional*): Position of the task of the first episode; without it the server chooses.
        timeout (`float`, *optional*, defaults to `330.0`): Longest a call may take, in seconds.
        patience (`float`, *optional*, defaults to `60.0`): How long a server that can't be reached, or a full pool, is
            waited for, in seconds.
        device (`torch.device`, *optional*): Where the observations go.

    Raises:
        UserError: If the server can't be reached or refuses the key.

    Examples:
        >>> env = RemoteEnv("http://127.0.0.1:18080")
        >>> rollout = env.rollout(10, policy)
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        first_task: int | None = None,
        timeout: float = 330.0,
        patience: float = 60.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(device=device, batch_size=())
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self.url, self.patience = url.rstrip("/"), patience
        self.next_task = first_task
        self._lease: str | None = None
        self._steps = 0
        self._drop_reason = ""
        self._last_state: Json = {}
        self.observation_spec = make_spec(self._request("GET", "/specs")["observation"], self.device)
        set_step_specs(self)

    def _set_seed(self, seed: int | None) -> None:
        self.next_task = seed or 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        task = self.next_task
        if tensordict is not None and "next_task" in tensordict:
            task = int(tensordict["next_task"])
        self.next_task = None if task is None else task + 1
        self._steps, self._drop_reason = 0, ""
        try:
            self._last_state = self._begin_episode(task)
        except _ServerFailure as error:
            self._give_back()
            self._drop_reason = str(error)
            self._last_state = pack(self._make_dropped_state())
        return unpack(self._last_state, self.device)

    def _begin_episode(self, task: int | None) -> Json:
        try:
            return self._call_leased("/reset", task=task)
        except _LeaseLost:  # it ran out between two episodes, which costs nothing: take another
            self._give_back()
            return self._call_leased("/reset", task=task)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._steps += 1
        return self._advance("/step", number=self._steps, action=str(tensordict["action"]))

    def conclude(self) -> TensorDictBase:
        """End the episode where it is, and observe its outcome."""
        return self._advance("/evaluate")

    def heartbeat(self) -> None:
        """Keep the lease while nothing is done for a while."""
        if self._lease is not None:
            self._request("POST", "/heartbeat", lease=self._lease)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Give the environment back."""
        self._give_back()
        self._http.close()
        super().close(raise_if_closed=raise_if_closed)

    def _give_back(self) -> None:
        """Return the lease, on a connection of its own: the other one may be what broke."""
        if self._lease is not None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{self.url}/close", json={"lease": self._lease}, headers=self._http.headers, timeout=10)
            self._lease = None

    def _advance(self, path: str, **content: Any) -> TensorDictBase:
        """Return the environment's next observation; once it is lost, the last one, dropped and without a reward."""
        if not self._drop_reason:
            try:
                self._last_state = self._call_leased(path, **content)
                return unpack(self._last_state, self.device)
            except (_ServerFailure, UserError) as error:
                self._give_back()
                self._drop_reason = str(error)
        state = unpack(self._last_state, self.device)
        state.set("reason", self._drop_reason)
        for name, value in {"done": True, "terminated": True, "truncated": False, "dropped": True}.items():
            state.set(name, torch.tensor([value], device=self.device))
        state.set("reward", torch.tensor([math.nan], device=self.device))
        return state

    def _make_dropped_state(self) -> TensorDictBase:
        """Make the observation of an episode that could not begin: dropped, and done with its first step."""
        state = self.observation_spec.zero()
        texts = {"conversation": "[]", "tools": "[]", "session_id": f"{type(self).__name__}-{uuid.uuid4().hex}"}
        for name, value in {**texts, "reason": self._drop_reason}.items():
            state.set(name, value)
        # Not done yet: TorchRL refuses a reset that is.
        for name in ("done", "terminated", "truncated"):
            state.set(name, torch.tensor([False], device=self.device))
        state.set("dropped", torch.tensor([True], device=self.device))
        return state

    def _call_leased(self, path: str, **content: Any) -> Json:
        """Call a route on the lent environment, leasing one if need be; returns the packed observation."""
        if self._lease is None:
            self._lease = str(self._request("POST", "/allocate")["lease"])
        state: Json = self._request("POST", path, lease=self._lease, **content)["state"]
        return state

    def _request(self, method: str, path: str, **content: Any) -> Json:
        """Return the server's answer; repeat the request while the server can't be reached or its pool is full."""
        attempts = Retrying(
            retry=retry_if_exception_type((httpx.TransportError, _NoFreeEnvironment)),
            # At random, or all rollouts of a run would come back to a full pool at the same moment.
            wait=wait_random_exponential(multiplier=0.1, max=5),
            stop=stop_after_delay(self.patience),
            reraise=True,
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._send(method, path, content)
        except httpx.TransportError as error:
            raise UserError(
                f"{self.url} can't be reached ({type(error).__name__}): start 'clawrl env-server'."
            ) from None
        except _NoFreeEnvironment as error:
            raise UserError(f"{self.url}: {error} Start it with a larger --size.") from None
        raise AssertionError("unreachable")

    def _send(self, method: str, path: str, content: Json) -> Json:
        answer = self._http.request(method, path, json=content if method == "POST" else None)
        if answer.is_success:
            return dict(answer.json())
        try:
            error = answer.json()["error"]
            message, code = str(error["message"]), error.get("code")
        except (ValueError, KeyError, TypeError):  # a proxy's error page
            message, code = answer.text[:200], None
        # By the code and not by the status, which a proxy in between may answer too.
        if code == "pool_full":
            raise _NoFreeEnvironment(message)
        if code in ("lease_not_found", "too_slow"):
            raise _LeaseLost(message)
        if answer.status_code in (401, 403):
            raise UserError(f"{self.url} refuses the key: set CLAWRL_ENV_KEY to the server's.")
        raise _ServerFailure(f"{self.url}{path} answered {answer.status_code}: {message}")


class _NoFreeEnvironment(Exception):
    """The pool has nothing to lend at present."""


class _ServerFailure(RuntimeError):
    """The server could not do what it was asked."""


class _LeaseLost(_ServerFailure):
    """The environment is lent to this client no longer."""
