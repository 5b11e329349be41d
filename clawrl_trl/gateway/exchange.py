"""One request on its way through the gateway: placed, forwarded, captured, committed, answered.

The order is the promise. A reply counts as finished for the client (the last event of a stream, a plain
response) only after its turn is in the ledger. An exchange runs as a task of its own, so a client that leaves
ends the generation but not the recording of what was sampled; for that the engine streams also what the client
gets in one piece.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from clawrl_trl.engines.calls import rename_reasoning
from clawrl_trl.engines.client import EngineUnavailable
from clawrl_trl.gateway import sampling, sse
from clawrl_trl.gateway.capture import Capture
from clawrl_trl.gateway.collect_reply import Whole, streamable
from clawrl_trl.gateway.errors import ApiError, any_error
from clawrl_trl.gateway.record import IncomingRequest, Record
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.sessions.sessions import strip_identity
from clawrl_trl.gateway.upstream import Upstream

STOPPED = ApiError(503, "The reply was stopped before its end.", code="stopped")
"""What a client that is still there hears when the gateway shuts down under its reply."""


TURN_IDS_TOLD = 32
"""Turn ids in the header of a reply, which clients and proxies read up to some kilobytes of; the others follow the
first one's pattern: `-<choice index>` behind it."""


class Exchange:
    """The life of one request.

    Run `run` as a task. `ready` resolves when the answer can begin: for a stream at its first event, for a plain
    reply at its end; with an error if there is no answer.

    Args:
        gateway (`Gateway`): The gateway.
        asked (`IncomingRequest`): The request.

    Raises:
        ApiError: 404 if its model does not exist.
    """

    def __init__(self, gateway: Gateway, asked: IncomingRequest) -> None:
        self.ready: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self.whole: dict[str, Any] = {}
        self._gateway, self._asked = gateway, asked
        self._version = gateway.policies.resolve(asked.body.get("model"))
        self._record = Record(
            asked,
            gateway.sessions,
            policy_version=self._version.number,
            model=gateway.policies.engine_name(self._version),
            engine=gateway.settings.engine,
            temperature=gateway.settings.served_temperature,
        )
        self._capture = Capture()
        self._streams = asked.streamed or streamable(asked.body)
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._withheld: list[bytes] = []
        self._relaying: asyncio.Task[None] | None = None
        self._ended = self._left = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the gateway adds to the reply."""
        turn_ids = self._record.turn_ids()
        more = {"X-Clawrl-Turn-Count": str(len(turn_ids))} if len(turn_ids) > TURN_IDS_TOLD else {}
        return more | {
            "X-Clawrl-Turn-Id": ",".join(turn_ids[:TURN_IDS_TOLD]),
            "X-Clawrl-Policy-Version": str(self._version.number),
        }

    def end(self) -> None:
        """Stop generating, keep what was sampled. After the end it does nothing."""
        self._ended = True
        if self._relaying is not None:
            self._relaying.cancel()

    def abandon(self) -> None:
        """The client is gone: end, and remember that it was the client who ended it."""
        self._left = True
        self.end()

    async def events(self) -> AsyncIterator[bytes]:
        """The bytes of the stream, to its end."""
        while (event := await self._events.get()) is not None:
            yield event

    async def run(self) -> None:
        """Everything, from forwarding to the last event. Never raises: a failure goes to the client."""
        with self._gateway.policies.lease(self._version):
            self._relaying = asyncio.create_task(self._relay())
            if self._ended:
                self._relaying.cancel()
            await asyncio.wait([self._relaying])
        failure = STOPPED if self._relaying.cancelled() else self._relaying.exception()
        try:
            await self._keep()
        except Exception as error:  # noqa: BLE001 - whatever kept the reply from being recorded, the client hears it
            failure = error
        if failure is None:
            self._deliver()
        else:
            self._fail(any_error(failure))

    async def _relay(self) -> None:
        # Its numbers are finite: those of the request were read by `body.parse`.
        content = msgspec.json.encode(self._upstream_body())
        gateway = self._gateway
        upstream = Upstream(gateway.engine, gateway.policies, self._version, self._asked.wire.path, gateway.patience_s)
        if self._asked.streamed:
            await self._pass_events(upstream, content)
        elif self._streams:
            await upstream.patiently(lambda: self._collect(upstream, content))
        else:
            self.whole = await upstream.patiently(lambda: upstream.whole(content))
            self._capture.take(self.whole)
            self.whole.pop("policy_versions", None)

    async def _pass_events(self, upstream: Upstream, content: bytes) -> None:
        async with aclosing(upstream.events(content, patient=True)) as events:
            async for event in events:
                self._capture.take(event)
                if "policy_versions" not in event:
                    self._pass_on(event)
        self._check_end()

    async def _collect(self, upstream: Upstream, content: bytes) -> None:
        # Of an attempt that broke off nothing is kept: nobody saw it, and another reply takes its place.
        capture, whole = Capture(self._capture.started_at), Whole(self._asked.body)
        self._capture = capture

        def take(event: dict[str, Any]) -> None:
            capture.take(event)
            whole.take(event)

        await upstream.collect(content, take)
        self._check_end()
        self.whole = whole.reply(capture)

    def _check_end(self) -> None:
        if not self._capture.finished:
            raise EngineUnavailable("the engine's stream ended before the reply did")

    def _upstream_body(self) -> dict[str, Any]:
        asked = self._asked.body
        body = (
            strip_identity(asked)
            | sampling.completed(asked, self._record.temperature)
            | self._asked.wire.logprobs(asked)
        )
        body.pop("model", None)
        if self._gateway.settings.serves_bundled_model:
            body.setdefault("repetition_detection", sampling.LOOP_GUARD)
        if "messages" in body:
            body["messages"] = rename_reasoning(body["messages"])
        body["return_token_ids"] = True
        body["stream"] = self._streams
        body.pop("stream_options", None)
        if self._streams:
            counted = {"include_usage": True, "continuous_usage_stats": True}
            body["stream_options"] = (asked.get("stream_options") or {}) | counted
        return body

    def _pass_on(self, event: dict[str, Any]) -> None:
        """Hand an event to the client now, or after the commit if it tells that a reply is complete."""
        if not self.ready.done():
            self.ready.set_result(None)
        choices = event.get("choices")
        closing = not choices or any(choice.get("finish_reason") for choice in choices)
        if self._present(event):
            if closing:
                self._withheld.append(sse.encode(event))
            else:
                self._events.put_nowait(sse.encode(event))

    async def _keep(self) -> None:
        stopped = self._left and self._relaying is not None and self._relaying.cancelled()
        policies = self._gateway.policies
        if not self._record.settle(
            self._capture, policies.sampled_logprobs, grammars=policies.grammars, stopped=stopped
        ):
            self._record.failed()
            return
        try:
            await self._gateway.write(self._record.write)
        except BaseException:
            self._record.failed()
            raise
        self._record.committed()

    def _deliver(self) -> None:
        if self._asked.streamed:
            for event in self._withheld:
                self._events.put_nowait(event)
            self._events.put_nowait(sse.DONE)
            self._events.put_nowait(None)
        elif self.whole:
            self._present(self.whole)
        if not self.ready.done():
            self.ready.set_result(None)

    def _fail(self, error: ApiError) -> None:
        if not self.ready.done():
            self.ready.set_result(error)
        self._events.put_nowait(error.event())
        self._events.put_nowait(None)

    def _present(self, reply: dict[str, Any]) -> bool:
        model = self._asked.body.get("model") or self._gateway.policies.alias
        return self._asked.wire.present(reply, self._asked.body, self._record.completion_id, model)
