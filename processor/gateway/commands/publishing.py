"""Publishes for clients of the gateway: rights, limits and acks."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.client import Client
from processor.client.publish.deleting import Selection, check
from processor.config.gateway import AuthConfig
from processor.errors import BrokerUnavailable, ConfigurationError, PublishRejected, RecordRejected, SowstreamError
from processor.gateway.access.entitlements import NO_RIGHTS
from processor.gateway.access.identity import Identity
from processor.gateway.access.requests import BadRequest
from processor.gateway.commands.checked_commands import CheckedCommands, OnAnswer, with_version
from processor.gateway.commands.turns import BoundedExecutor, NumberOrder, UnackedCommands
from processor.record import Value
from processor.wire.ack import Ack, ack_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processor.config import Config
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.gateway_metrics import GatewayMetrics

log = structlog.stdlib.get_logger("sowstream.gateway")

_THREADS: Final = 4
"""Commands that are given to Kafka's client at the same time; it takes them one by one unless Kafka is away."""
_WAITING_MAX: Final = 1_000
"""Commands that wait for one of these threads."""


class Publishing:
    """Publishes to Kafka with one client for all commands, under any name that numbers them."""

    def __init__(
        self,
        config: Config,
        feeds: Mapping[str, KafkaFeed],
        rights: Callable[[Identity, str], Rights],
        metrics: GatewayMetrics,
    ) -> None:
        self._config = config
        self._feeds = feeds
        self._rights = rights
        self._metrics = metrics
        self._client = Client("gateway", config)
        self._executor = BoundedExecutor("publishes", threads=_THREADS, waiting_max=_WAITING_MAX)
        self._refusals: Counter[tuple[str, str, str | None]] = Counter()
        self._unacked = UnackedCommands(len(feeds), is_anonymous=not isinstance(config.gateway.auth, AuthConfig))
        self._checked = CheckedCommands(config, feeds, rights, self._send_on_thread, self._note_refusal, self._unacked)

    async def publish(
        self,
        identity: Identity,
        op: str,
        topic: str,
        fields: dict[str, Value],
        *,
        client: str,
        numbers: NumberOrder,
        on_answer: OnAnswer,
    ) -> None:
        """Publish one command.

        Args:
            identity: the publisher.
            op: `publish`, `delta_publish` or `sow_delete`.
            topic: the topic.
            fields: the other fields of the request.
            client: the publisher's own name, under which its sequences count.
            numbers: the order of the sequences of its connection, or of its request.
            on_answer: called with each ack that it asks for.

        Raises:
            BadRequest: it may not be published, or a field is wrong.
            SowstreamError: it was not published.
        """
        rights = self._rights(identity, topic)
        if topic not in self._feeds or rights == NO_RIGHTS:
            raise self._refused(identity, op, topic, f"there is no topic {topic!r:.100} for {identity.user}")
        arguments = self._arguments(op, topic, fields)
        user = identity.user.replace("%", "%25").replace("/", "%2F")  # No name of one user is that of another one.
        name = f"{user}/{client}" if arguments.get("sequence") is not None else None
        try:
            self._checked.check(topic).check_rights(identity.user, rights, op)
        except BadRequest as error:
            raise self._refused(identity, op, topic, str(error)) from None
        is_of_many = arguments.get("filter") is not None or arguments.get("keys") is not None
        if rights.reads_all and is_of_many:
            await self._checked.turns.wait_for_all(topic)
        elif rights.publish is not None or not rights.reads_all:
            await self._checked.begin(identity, op, topic, arguments, name=name, numbers=numbers, on_answer=on_answer)
            return
        end = _do_nothing
        if arguments.get("ack"):
            count = 1 if arguments.get("keys") is None else len(arguments["keys"])
            end = await self._unacked.admit(topic, identity.user, count)
        try:
            numbers.check(topic, arguments.get("sequence"))
            await self._send_unchecked(name, op, topic, arguments, on_answer, end, is_one=not is_of_many)
        except BaseException:
            end()
            raise

    async def _send_unchecked(
        self,
        name: str | None,
        op: str,
        topic: str,
        arguments: dict[str, Any],
        on_answer: OnAnswer,
        on_end: Callable[[], None],
        *,
        is_one: bool,
    ) -> None:
        """Send a command that depends on no record; `on_end` is called when its last ack has come, if this succeeds.

        Deletes of several records are answered once, when each of them was acknowledged.
        """
        loop = asyncio.get_running_loop()

        def on_loop(call: Callable[..., None], *values: object) -> None:
            with suppress(RuntimeError):  # The gateway has stopped.
                loop.call_soon_threadsafe(call, *values)

        def answer(ack_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            on_loop(on_answer, ack_type, ack, error)

        if arguments.get("ack") and is_one:
            types = ack_types(arguments["ack"], is_delete=op == "sow_delete")
            arguments["ack"] = with_version(types)
            arguments["on_ack"] = lambda one: answer(one.ack_type, one, None) if one.ack_type in types else None
        future = await self._send_on_thread(name, op, topic, arguments)
        if future is None:
            on_end()
            answer(None, None, None)
            return

        def done(future: Future[Ack]) -> None:
            on_loop(on_end)
            error = future.exception()
            if error is None and not is_one:
                last = future.result()
                answer(last.ack_type, last, None)
            elif error is not None and not (is_one and isinstance(error, PublishRejected)):
                answer(None, None, error if isinstance(error, Exception) else SowstreamError(str(error)))

        future.add_done_callback(done)

    def close(self) -> None:
        """Send what waits, and end the client."""
        self.log_refusals()
        self._executor.close()
        try:
            self._client.close()
        except SowstreamError as error:
            log.warning("the publishing client did not end cleanly", error=str(error))

    async def _send_on_thread(
        self, name: str | None, op: str, topic: str, arguments: dict[str, Any]
    ) -> Future[Ack] | None:
        future = await self._executor.run(self._send, name, op, topic, arguments)
        self._metrics.publishes += 1
        return future

    def _send(self, name: str | None, op: str, topic: str, arguments: dict[str, Any]) -> Future[Ack] | None:
        calls = self._client if name is None else self._client.under_name(name)
        sent: Future[Ack] | None = getattr(calls, op)(topic, **arguments)
        return sent

    def _arguments(self, op: str, topic: str, fields: dict[str, Value]) -> dict[str, Any]:
        """The arguments of the client's call."""
        if self._config.underlying(topic) is not None:
            raise BadRequest("bad_request", f"{topic} is made by a worker; publish to {self._config.root(topic)}")
        arguments = {name: value for name, value in fields.items() if value is not None and name != "topic"}
        if op == "sow_delete":
            if "expiration" in arguments:
                raise BadRequest("bad_request", "sow_delete has no field 'expiration'")
            selection = Selection(*(arguments.get(name) for name in Selection._fields))
            is_conditional = arguments.get("expect_version") is not None
            check(selection, has_sequence=arguments.get("sequence") is not None, is_conditional=is_conditional)
        elif "data" not in arguments:
            raise BadRequest("bad_request", f"{op} needs the field 'data'")
        if "expect_version" in arguments:
            arguments.setdefault("ack", "processed")  # Only a worker knows whether it was carried out.
        return arguments

    def _refused(self, identity: Identity, op: str, topic: str, detail: str) -> BadRequest:
        self._note_refusal(identity, op, topic)
        return BadRequest("not_entitled", detail)

    def _note_refusal(self, identity: Identity, op: str, topic: str) -> None:
        self._metrics.refused_publishes += 1
        # Not the name that a client gives to a topic that is not there: it may be as long as a frame, and say anything.
        refusal = identity.user, op, topic if topic in self._feeds else None
        self._refusals[refusal] += 1
        if self._refusals[refusal] == 1:
            log.warning("a command was refused", user=identity.user, op=op, topic=refusal[2])

    def log_refusals(self) -> None:
        """Log how many commands of a kind were refused since the last call, beyond the first: a body may have many."""
        refusals, self._refusals = self._refusals, Counter()
        for (user, op, topic), count in refusals.items():
            if count > 1:
                log.warning("further commands were refused", user=user, op=op, topic=topic, count=count - 1)


def _do_nothing() -> None:
    """Do nothing: a command without an ack does not wait for one."""


def describe(error: Exception) -> tuple[str, str]:
    """The reason and the details of an error, as acks have them."""
    if isinstance(error, BadRequest):
        return error.reason, str(error)
    if isinstance(error, RecordRejected):
        return error.reason, error.detail
    if isinstance(error, ConfigurationError):
        return "bad_request", str(error)
    if isinstance(error, BrokerUnavailable):
        return "unavailable", str(error)
    return type(error).__name__, str(error)
