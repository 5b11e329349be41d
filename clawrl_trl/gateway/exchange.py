"""One request on its way through the gateway: placed, forwarded, captured, committed, answered.

The order is the promise. A reply counts as finished for the client (the last event of a stream, a plain
response) only after its turn is in the ledger. An exchange runs as a task of its own, so a client that leaves
ends the generation but not the recording of what was sampled; for that the engine streams also what the client
gets in one piece.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec

from clawrl_trl.engines.calls import rename_reasoning
from clawrl_trl.engines.client import EngineUnavailable
from clawrl_trl.gateway import sampling
from clawrl_trl.gateway.capture import Capture
from clawrl_trl.gateway.collect_reply import ReplyCollector, is_streamable
from clawrl_trl.gateway.errors import ApiError, any_error
from clawrl_trl.gateway.record import Record
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.sessions.identity import strip_identity
from clawrl_trl.gateway.sessions.incoming import IncomingRequest
from clawrl_trl.gateway.sessions.placement import Placement
from clawrl_trl.gateway.upstream import Upstream
from clawrl_trl.http import sse
from clawrl_trl.messages import Json

STOPPED = ApiError(503, "The reply was stopped before its end.", code="stopped")
"""What a client that is still there hears when the gateway shuts down under its reply."""


MAX_TURN_IDS = 32
"""Turn ids in the header of a reply, which clients and proxies read up to some kilobytes of; the others follow the
first one's pattern: `-<choice index>` behind it."""


class Exchange:
    """The life of one request.

    Run `run` as a task. `ready` resolves when the answer can begin: for a stream at its first event, for a plain
    reply at its end; with an error if there is no answer.

    Args:
        gateway (`Gateway`): The gateway.
        request (`IncomingRequest`): The request.

    Raises:
        ApiError: 404 if its model does not exist, 400 for a name of a session or a group that is too long.
    """

    def __init__(self, gateway: Gateway, request: IncomingRequest) -> None:
        self.ready: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self.reply: Json = {}
        self._gateway, self._request = gateway, request
        self._version = gateway.policies.resolve(request.body.get("model"))
        self._placements: list[Placement] = []
        self._record = Record(
            request,
            policy_version=self._version.number,
            model=gateway.policies.engine_name(self._version),
            engine=gateway.settings.engine,
            temperature=gateway.settings.served_temperature,
        )
        self._capture = Capture()
        self._streams = request.is_streamed or is_streamable(request.body)
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._withheld: list[bytes] = []
        self._relaying: asyncio.Task[None] | None = None
        self._ended = self._left = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the gateway adds to the reply."""
        turn_ids = self._record.turn_ids()
        count = {"X-Clawrl-Turn-Count": str(len(turn_ids))} if len(turn_ids) > MAX_TURN_IDS else {}
        return count | {
            "X-Clawrl-Turn-Id": ",".join(turn_ids[:MAX_TURN_IDS]),
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
        """Everything, from placing to the last event. Never raises: a failure goes to the client."""
        try:
            # Before anything is sent: the next request of the conversation may come before this one's reply.
            self._placements = self._gateway.sessions.place(self._request)
        except Exception as error:  # noqa: BLE001 - the client waits, whatever went wrong
            self._fail(any_error(error))
            return
        with self._gateway.policies.lease(self._version):
            # A task of its own, so that `end` can cancel the generation and the recording behind it goes on.
            self._relaying = asyncio.create_task(self._relay())
            # The client may have left before this task began: `end` found nothing to cancel then.
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
        upstream = Upstream(
            gateway.engine, gateway.policies, self._version, self._request.wire.path, gateway.patience_s
        )
        if self._request.is_streamed:
            await self._pass_events(upstream, content)
        elif self._streams:
            await upstream.try_patiently(lambda: self._collect(upstream, content))
        else:
            self.reply = await upstream.try_patiently(lambda: upstream.fetch_reply(content))
            self._capture.take(self.reply)
            # They are for the record; a client would be shown a field that no OpenAI server sends.
            self.reply.pop("policy_versions", None)

    async def _pass_events(self, upstream: Upstream, content: bytes) -> None:
        async with aclosing(upstream.events(content, patient=True)) as events:
            async for event in events:
                self._capture.take(event)
                if "policy_versions" not in event:
                    self._pass_on(event)
        self._check_end()

    async def _collect(self, upstream: Upstream, content: bytes) -> None:
        # Of an attempt that broke off nothing is kept: nobody saw it, and another reply takes its place.
        capture, collector = Capture(self._capture.started_at), ReplyCollector(self._request.body)
        self._capture = capture

        def take(event: Json) -> None:
            capture.take(event)
            collector.take(event)

        await upstream.collect(content, take)
        self._check_end()
        self.reply = collector.reply(capture)

    def _check_end(self) -> None:
        if not self._capture.is_finished:
            raise EngineUnavailable("the engine's stream ended before the reply did")

    def _upstream_body(self) -> Json:
        client_body = self._request.body
        body = (
            strip_identity(client_body)
            | sampling.complete_parameters(client_body, self._record.temperature)
            | self._request.wire.logprobs(client_body)
        )
        # `Upstream` names the model at each attempt: it may have been exchanged since the request came.
        body.pop("model", None)
        # Chats are equal, and before scoring calls: with a priority of its own one would pass the others.
        body.pop("priority", None)
        if self._gateway.settings.serves_bundled_model:
            body.setdefault("repetition_detection", sampling.LOOP_GUARD)
        if "messages" in body:
            body["messages"] = rename_reasoning(body["messages"])
        body["return_token_ids"] = True
        body["stream"] = self._streams
        # vLLM refuses stream options in a request that is not streamed.
        body.pop("stream_options", None)
        if self._streams:
            # A running count tells how many tokens were sampled of a reply that is cut before its last event.
            usage = {"include_usage": True, "continuous_usage_stats": True}
            body["stream_options"] = (client_body.get("stream_options") or {}) | usage
        return body

    def _pass_on(self, event: Json) -> None:
        """Hand an event to the client now, or after the commit if it tells that a reply is complete."""
        if not self.ready.done():
            self.ready.set_result(None)
        choices = event.get("choices")
        # The event of usage has no choices and comes after the finish reasons: let through, it would tell of the end.
        is_closing = not choices or any(choice.get("finish_reason") for choice in choices)
        if self._present(event):
            if is_closing:
                self._withheld.append(sse.encode(event))
            else:
                self._events.put_nowait(sse.encode(event))

    async def _keep(self) -> None:
        stopped = self._left and self._relaying is not None and self._relaying.cancelled()
        policies = self._gateway.policies
        # What the engine reports is asked now: it may have been learnt, or exchanged, while the reply was sampled.
        if not self._record.settle(
            self._capture,
            self._placements,
            policies.sampled_logprobs,
            grammars=policies.grammars,
            stopped=stopped,
        ):
            self._fail_placements()
            return
        try:
            await self._gateway.write(self._record.write)
        # Also when cancelled: a placement that stays open would make its repetition look like another client's.
        except BaseException:
            self._fail_placements()
            raise
        # After the commit: a reply that is in the index and not in the ledger would get a next state and have no row.
        self._record.enter_replies(self._gateway.sessions)

    def _fail_placements(self) -> None:
        for placement in self._placements:
            self._gateway.sessions.fail(placement)

    def _deliver(self) -> None:
        if self._request.is_streamed:
            for event in self._withheld:
                self._events.put_nowait(event)
            self._events.put_nowait(sse.DONE)
            self._events.put_nowait(None)
        elif self.reply:
            self._present(self.reply)
        if not self.ready.done():
            self.ready.set_result(None)

    def _fail(self, error: ApiError) -> None:
        if not self.ready.done():
            self.ready.set_result(error)
        self._events.put_nowait(error.event())
        self._events.put_nowait(None)

    def _present(self, reply: Json) -> bool:
        model = self._request.body.get("model") or self._gateway.policies.alias
        return self._request.wire.present(reply, self._request.body, self._record.completion_id, model)
