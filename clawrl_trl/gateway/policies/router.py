"""Routing of requests to policy versions, and the change to a new version under running requests.

The follower reads from the ledger which version serves. It makes the engine load that version first and only
then lets new requests have it; requests in flight keep theirs, because each holds a lease and a version with a
lease is never unloaded. A version that can't be loaded leaves the old one in place. The engine may restart at
any time and forget its adapters: whoever meets that calls `reload`.

A whole model on an engine that holds only one takes the place of the model before it. Requests on their way go on
with the new one, the engine notes which version sampled which token, and the versions that are gone from the engine
can't be asked for any more. A publisher may be ahead of the ledger by a moment; so the gateway asks for "the policy
in place" and never puts an older version back because a request was placed under it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session as Transaction

from clawrl_trl.engines.calls import IN_PLACE_MODEL, find_base_name, loaded_from
from clawrl_trl.engines.client import EngineClient, EngineError, EngineUnavailable
from clawrl_trl.engines.kinds import Serving, served_folder
from clawrl_trl.gateway.policies.names import ModelNames
from clawrl_trl.gateway.policies.version import (
    DamagedPolicy,
    Version,
    find_serving,
    read_serving_number,
    read_versions,
)
from clawrl_trl.gateway.probe import reports_sampled_logprobs
from clawrl_trl.ledger import Ledger, LedgerWriter, events
from clawrl_trl.ledger.errors import LedgerError
from clawrl_trl.policies import PolicyStore, find_damage, reject_damaged
from clawrl_trl.policy_names import BASE_MODEL, name_policy, parse_policy_name
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

POLL_S = 0.2
RETRY_LOAD_S = 5.0

NOT_SAMPLED = "turns at other temperatures can't be trained on (vLLM: --logprobs-mode processed_logprobs)"


class PolicyRouter:
    """The versions that can be asked for, and the one that serves.

    Args:
        ledger (`Ledger`): Read for the serving version.
        writer (`LedgerWriter`): For events.
        engine (`EngineClient`): Where versions are loaded.
        aliases (`Sequence[str]`): Model names that mean the serving version, the first for those who ask for none.
        any_name (`bool`, defaults to `False`): Every unknown name means it too, but for those of policy versions.
        keep (`int`): Retired versions kept loaded and reachable by name.
        folder (`Path`): The run folder; a policy's path may be relative to it.

    Attributes:
        sampled_logprobs (`bool | None`): Whether the engine's log-probs follow the sampling temperature; `None` as
            long as nobody knows. It is known before the first request is sent, unless the engine couldn't say.
        fault (`str | None`): Why the serving version can't serve, until another one does.
    """

    def __init__(
        self,
        ledger: Ledger,
        writer: LedgerWriter,
        engine: EngineClient,
        *,
        aliases: Sequence[str],
        any_name: bool = False,
        keep: int,
        folder: Path,
    ) -> None:
        self._ledger, self._writer, self._engine = ledger, writer, engine
        self._keep, self._store = keep, PolicyStore(RunFolder(folder).policies)
        self.alias, self._names = aliases[0], ModelNames(aliases, any_name=any_name)
        self.serving = Version(0, None, "serving", "base")
        self.kept: dict[int, Version] = {0: self.serving}
        self.leases: Counter[int] = Counter()
        self._base_name = BASE_MODEL
        self._engine_serves: Serving | None = None
        self._target = self.serving
        self._loaded: set[int] = set()
        self._retired: set[int] = set()
        self._pruned: set[int] = set()
        self._known: dict[int, Version] = {}
        self._loading = asyncio.Lock()
        self._followed: tuple[int, int | None] | None = None
        self._failed: tuple[int, float] = (-1, 0.0)
        self.sampled_logprobs: bool | None = None
        self.fault: str | None = None

    @property
    def grammars(self) -> bool:
        """True if the engine may sample under a grammar; assumed as long as nobody knows."""
        return self._engine_serves is None or self._engine_serves.grammars

    def names(self) -> list[str]:
        """Every model name that has a meaning of its own, the aliases first."""
        return self._names.list_names(self.kept)

    def resolve(self, name: str | None) -> Version:
        """The version a model name stands for.

        Raises:
            ApiError: 404 in OpenAI's shape that lists what exists.
        """
        return self._names.resolve(name, self.kept, self.serving, self._pruned)

    def engine_name(self, version: Version) -> str:
        """The name under which the engine serves a version, or what took its place."""
        if self._engine_serves is not None and self._engine_serves.in_place:
            return IN_PLACE_MODEL
        return version.name if version.number else self._base_name

    @contextlib.contextmanager
    def lease(self, version: Version) -> Iterator[None]:
        """Keep a version loaded for as long as the block runs."""
        self.leases[version.number] += 1
        try:
            yield
        finally:
            self.leases[version.number] -= 1
            if not self.leases[version.number]:
                del self.leases[version.number]

    async def ensure(self, version: Version) -> str:
        """Have the engine load a version unless it is known to be loaded.

        Returns:
            The name to ask the engine for: the version's, or that of what took its place.

        Raises:
            EngineError: If the engine can't.
        """
        if version.number in self._loaded:
            return self.engine_name(version)
        async with self._loading:
            engine = await self._get_serving()
            if engine.in_place == 0:
                # A request placed under an older whole model must not take back the one that the follower exchanges.
                taken_back = engine.exchanges(version.kind) and version.number != self._target.number
                version = self._target if taken_back else version
                await self._load(version)
            return self.engine_name(version)

    async def reload(self, version: Version) -> str:
        """Load a version again: the engine said it doesn't know it."""
        # An engine that forgot a version was started again: what it said of itself may no longer be true.
        self._loaded.discard(version.number)
        self._engine_serves = None
        return await self.ensure(version)

    async def _load(self, version: Version) -> None:
        """Load a version whatever it takes; to be called with `_loading` held."""
        if version.number in self._loaded:
            return
        engine = await self._get_serving()
        exchanges = engine.exchanges(version.kind)
        if engine.in_place and not exchanges:
            # An adapter belongs on the base, and another whole model is in its place.
            await self._engine.restore_base()
            self._engine_serves, self._loaded = replace(engine, in_place=0), {0}
        if version.number:
            # On a thread: a whole model's files are read to the end for their digest.
            await asyncio.to_thread(self._reject_damaged, version)
            begun_at = time.monotonic()
            await self._engine.load_policy(version.name, self._path(version))
            logger.info("policy version %d loaded in %.2f s", version.number, time.monotonic() - begun_at)
        if exchanges:
            # Adapters were made for the base, so none of those that were loaded is served beside it.
            self._engine_serves, self._loaded = replace(engine, in_place=version.number), set()
        self._loaded.add(version.number)

    def _reject_damaged(self, version: Version) -> None:
        """Reject a damaged version before an engine loads it.

        Raises:
            DamagedPolicy: If it is damaged.
            LedgerError: If that can't be noted in the ledger.
        """
        folder = self._path(version)
        # The engine reports a folder that is gone.
        damage = find_damage(folder, version.sha256) if folder.is_dir() else None
        if damage is None:
            return
        if version.number == self.serving.number:
            self.fault = f"Policy version {version.number} is damaged ({damage}): the last good one is being loaded."
        reject_damaged(self._ledger, self._store, version.number, damage)
        # The ledger names another version now: the next look must act on it, even on one that it followed before.
        self._followed = None
        raise DamagedPolicy(503, f"it is damaged: {damage}")

    async def _get_serving(self) -> Serving:
        return self._engine_serves or await self._learn()

    async def _learn(self) -> Serving:
        """Ask the engine what it calls its base, has loaded and can exchange; call it with `_loading` held."""
        serves = await self._engine.serving()
        roots = await self._engine.roots()
        self._base_name = find_base_name(roots)
        try:
            await self._probe()
        except EngineError:
            self.sampled_logprobs = None  # the follower asks again
        # Only now: whoever sees that a version is loaded sends requests without waiting for the lock.
        versions = {parse_policy_name(name): root for name, root in roots.items()}
        listed = {number: root for number, root in versions.items() if number is not None}
        self._loaded = {number for number, root in listed.items() if self._is_ours(number, root)}
        if not serves.in_place:
            self._loaded.add(0)
        self._engine_serves = serves
        return serves

    async def _probe(self) -> None:
        """Find out which log-probs the engine reports; of one that can't be asked the worst is assumed."""
        try:
            self.sampled_logprobs = await reports_sampled_logprobs(self._engine, self._base_name)
        except EngineError as error:
            # An engine that is merely down may still turn out to report the right ones.
            if error.retryable:
                raise
            self.sampled_logprobs = False
        if not self.sampled_logprobs:
            logger.warning("the engine reports log-probs of temperature 1 only; %s", NOT_SAMPLED)

    async def follow(self) -> None:
        """Follow the ledger until cancelled."""
        while True:
            try:
                await self.step()
            except (EngineError, LedgerError) as error:
                logger.debug("policy follower: %s", error)
            except Exception:  # a follower that dies would freeze the policy without anybody noticing
                logger.exception("the policy follower stumbled and goes on")
            await asyncio.sleep(POLL_S)

    def start(self) -> None:
        """Adopt what the ledger says, before the first request and whether or not the engine is up.

        Raises:
            LedgerError: If the ledger can't be read.
        """
        rows = read_versions(self._ledger)
        serving = find_serving(rows)
        with contextlib.suppress(DamagedPolicy):
            if serving.number:
                self._reject_damaged(serving)
        # Read again: where a damaged version was rejected, the ledger now names another.
        rows = read_versions(self._ledger)
        self._adopt(rows, find_serving(rows))

    async def step(self) -> None:
        """One look at the ledger and what follows from it.

        Raises:
            EngineError: If the engine can't be reached.
            LedgerError: If the ledger can't be read.
        """
        # Another process is an engine that was started again, without its adapters.
        state = (await asyncio.to_thread(read_serving_number, self._ledger), self._engine.address.pid)
        if self._followed is None or state[1] != self._followed[1]:
            async with self._loading:
                await self._learn()
        if self.sampled_logprobs is None:
            await self._probe()
        if state == self._followed:
            await self._unload_idle()
            return
        rows = await asyncio.to_thread(read_versions, self._ledger)
        target = find_serving(rows)
        if await self._try_load(target):
            if target.number != self.serving.number:
                logger.info("policy version %d serves (before: %d)", target.number, self.serving.number)
            self._adopt(rows, target)
            self._followed = (target.number, state[1])

    def _adopt(self, rows: list[Version], serving: Version) -> None:
        retired = [version for version in rows if version.state == "retired" and version.number]
        # The first row is the base, which stays reachable whatever serves.
        candidates = [rows[0], serving, *(retired[-self._keep :] if self._keep else ())]
        engine = self._engine_serves
        self.kept = {
            version.number: version
            for version in candidates
            if engine is None or engine.offers(version.number, version.kind)
        }
        self._retired = {version.number for version in retired}
        self._pruned = {version.number for version in rows if version.state == "pruned"}
        self._known = {version.number: version for version in rows}
        if serving.number != self.serving.number:
            self.fault = None
        self.serving = self._target = serving

    async def _try_load(self, version: Version) -> bool:
        failed, again_at = self._failed
        if failed == version.number and time.monotonic() < again_at:
            return False
        self._target = version
        try:
            async with self._loading:
                await self._load(version)
        except EngineUnavailable:
            # An engine that is down says nothing about the version.
            raise
        except DamagedPolicy:
            self._target = self.serving
            return False
        except EngineError as error:
            self._target = self.serving
            self._failed = (version.number, time.monotonic() + RETRY_LOAD_S)
            # Once for each version, or every retry would add an event to the ledger.
            if failed != version.number:
                logger.warning(
                    "policy version %d can't be loaded, %d goes on: %s", version.number, self.serving.number, error
                )
                await self._log(version, error)
            return False
        self._failed = (-1, 0.0)
        return True

    async def _log(self, version: Version, error: EngineError) -> None:
        def write(tx: Transaction) -> None:
            events.log(tx, "policy_load_failed", str(version.number), status=error.status, message=error.message[:500])

        await self._writer.run(write)

    async def _unload_idle(self) -> None:
        # Retired ones alone: a candidate that the publisher has loaded is about to serve.
        for number in (self._loaded & self._retired) - self.kept.keys():
            if not self.leases[number]:
                # Before the call: requests look here without the lock, and must not find what is being unloaded.
                self._loaded.discard(number)
                await self._engine.unload_adapter(name_policy(number))

    def _is_ours(self, number: int, root: str | None) -> bool:
        """Return whether what the engine has loaded from `root` is this run's version; engines may outlive runs."""
        version = self._known.get(number)
        return version is not None and bool(version.path) and loaded_from(root, served_folder(self._path(version)))

    def _path(self, version: Version) -> Path:
        if version.path is None:
            raise EngineError(500, f"policy version {version.number} has no folder")
        return self._store.locate(version.path)
