"""Publishes for clients of the gateway: rights, limits and acks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.client import Client
from processor.errors import ConfigurationError, PublishRejected, RecordRejected, SowstreamError, VersionConflict
from processor.gateway.access.entitlements import NO_RIGHTS
from processor.gateway.access.identity import Identity
from processor.gateway.publishers import Publishers
from processor.gateway.sessions.requests import BadRequest
from processor.gateway.sessions.session_subscriptions import SCAN_MAX
from processor.merge import MergePolicy, compile_merge
from processor.record import Record, Value
from processor.subscriptions import SubscriptionSpec, parse_options
from processor.wire.ack import Ack
from processor.wire.sow_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config import Config
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.metrics import GatewayMetrics

log = structlog.stdlib.get_logger("sowstream.gateway")

_TAKEN_MAX: Final = 500
"""Keys of a delete by filter that are collected without a pause for others."""

OnAnswer = Callable[[str | None, "Ack | None", "Exception | None"], None]
"""Called on the event loop with each ack, by type, or with the error that stands for all of them."""


class Publishing:
    """Publishes to Kafka with one client for all commands, and one for each name that numbers its commands."""

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
        self._publishers: Publishers[Client] = Publishers(lambda name: Client(name, config), unnamed="gateway")
        self._takes_version = "expect_version" in inspect.signature(Client.publish).parameters

    async def publish(
        self, identity: Identity, op: str, topic: str, fields: dict[str, Value], *, client: str, on_answer: OnAnswer
    ) -> None:
        """Publish one command.

        Args:
            identity: the publisher.
            op: `publish`, `delta_publish` or `sow_delete`.
            topic: the topic.
            fields: the other fields of the request.
            client: the publisher's own name, under which its sequences count.
            on_answer: called with each ack that it asks for.

        Raises:
            BadRequest: it may not be published, or a field is wrong.
            SowstreamError: it was not published.
        """
        arguments = self._checked(identity, op, topic, fields)
        if "expect_version" in arguments:
            arguments.setdefault("ack", "processed")  # Only a worker knows whether it was carried out.
        if arguments.get("filter") is not None and not await self._select_keys(identity, topic, arguments):
            on_answer(None, None, None)  # Nothing that it may see matches.
            return
        loop = asyncio.get_running_loop()
        # Deletes of several records are answered once, when each of them was acknowledged.
        is_one = arguments.get("filter") is None and arguments.get("keys") is None

        def answer(ack_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            try:
                loop.call_soon_threadsafe(on_answer, ack_type, ack, error)
            except RuntimeError:
                return  # The gateway has stopped.

        if arguments.get("ack") and is_one:
            arguments["on_ack"] = lambda one: answer(one.ack_type, one, None)
        user = identity.user.replace("%", "%25").replace("/", "%2F")  # No name of one user is that of another one.
        name = f"{user}/{client}" if arguments.get("sequence") is not None else None
        future = await asyncio.to_thread(self._send, name, op, topic, arguments)
        self._metrics.publishes += 1
        if future is None:
            answer(None, None, None)
            return

        def done(future: Future[Ack]) -> None:
            error = future.exception()
            if error is None and not is_one:
                last = future.result()
                answer(last.ack_type, last, None)
            elif error is not None and not (is_one and isinstance(error, PublishRejected)):
                answer(None, None, error if isinstance(error, Exception) else SowstreamError(str(error)))

        future.add_done_callback(done)

    def close(self) -> None:
        """Send what waits, and end the clients."""
        self._publishers.close()

    def _send(self, name: str | None, op: str, topic: str, arguments: dict[str, Any]) -> Future[Ack] | None:
        return self._publishers.send(name, lambda publisher: getattr(publisher, op)(topic, **arguments))

    def _checked(self, identity: Identity, op: str, topic: str, fields: dict[str, Value]) -> dict[str, Any]:
        """The arguments of the client's call, if the identity may make it."""
        rights = self._rights(identity, topic)
        if topic not in self._feeds or rights == NO_RIGHTS:
            raise self._refused(identity, op, topic, f"there is no topic {topic!r:.100} for {identity.user}")
        if self._config.underlying(topic) is not None:
            raise BadRequest("bad_request", f"{topic} is made by a worker; publish to {self._config.root(topic)}")
        arguments = {name: value for name, value in fields.items() if value is not None and name != "topic"}
        if not self._takes_version and arguments.pop("expect_version", None) is not None:
            raise BadRequest("unsupported", "expect_version is not supported by this installation's workers")
        if op == "sow_delete":
            if not rights.delete:
                raise self._refused(identity, op, topic, f"{topic}: {identity.user} may not delete")
            return arguments
        if "data" not in arguments:
            raise BadRequest("bad_request", f"{op} needs the field 'data'")
        if not rights.may_publish:
            raise self._refused(identity, op, topic, f"{identity.user} may not publish to {topic}")
        if rights.publish is not None:
            self._check_merged(identity, op, topic, arguments)
        return arguments

    def _check_merged(self, identity: Identity, op: str, topic: str, arguments: dict[str, Any]) -> None:
        """Check that the record after the command matches the filter of the identity's right to publish."""
        settings = self._config.topic(topic)
        rights = self._rights(identity, topic)
        assert rights.publish is not None
        if settings.preprocess or settings.enrich or settings.sequence_groups:
            raise BadRequest("not_entitled", f"{topic} changes its messages; a right with a filter cannot be checked")
        data = arguments["data"]
        merged = data
        record = self._current(topic, arguments.get("key"), data)
        if op == "delta_publish":
            if settings.merge_rules:
                raise BadRequest("not_entitled", f"{topic} has merge rules; a right with a filter cannot be checked")
            if type(data) is not dict:
                raise BadRequest("bad_request", "the data of a delta is an object")
            before = {} if record is None else self._feeds[topic].topic.value(record)
            policy = MergePolicy(settings.null_policy, settings.merge_depth)
            merged = compile_merge(policy)(before, _copied(data)).record
        if not rights.publish.matches(merged):
            raise self._refused(identity, op, topic, f"{identity.user} may not publish this record to {topic}")
        if self._takes_version:
            # What was checked is what is merged: another update in between makes the worker reject this one.
            version = 0 if record is None else version_of(record.headers) or 0
            if arguments.setdefault("expect_version", version) != version:
                raise VersionConflict(f"the record has version {version} in the gateway's view", version)

    async def _select_keys(self, identity: Identity, topic: str, arguments: dict[str, Any]) -> bool:
        """Replace the filter of a delete by the keys of the visible records that match; False: there are none.

        A worker's filter sees all fields, and what it deletes would say what is in them.
        """
        read = self._rights(identity, topic).read
        if read is None:
            raise self._refused(identity, "sow_delete", topic, f"{topic}: a delete by filter needs the right to read")
        if read.filter is None and read.select is None:
            return True
        feed = self._feeds[topic]
        if feed.engine is None:
            raise BadRequest("unavailable", f"the view of {topic} has not caught up yet; try again later")
        form = {"snapshot": True, "live": False, "delta": False}
        text = arguments.pop("filter")
        spec = SubscriptionSpec(feed.topic, text, parse_options(None, **form), **form, entitlement=read)
        connection = feed.engine.connect(scan_max=SCAN_MAX)
        connection.subscribe(spec)
        keys: list[str] = []
        try:
            while connection.has_waiting:
                keys += [one.sow_key for one in connection.take(_TAKEN_MAX) if one.command == "sow" and one.sow_key]
                await asyncio.sleep(0)
        finally:
            connection.close()
        arguments["keys"] = keys
        return bool(keys)

    def _current(self, topic: str, key: str | None, data: Value) -> Record | None:
        feed = self._feeds[topic]
        if feed.engine is None:
            raise BadRequest("unavailable", f"the view of {topic} has not caught up yet; try again later")
        if key is None and type(data) is dict:
            key = feed.topic.key.text(data)
        if key is None:
            raise BadRequest("missing_key", "the message has no key")
        return feed.engine.find(key.encode(errors="surrogatepass"))

    def _refused(self, identity: Identity, op: str, topic: str, detail: str) -> BadRequest:
        self._metrics.refused_publishes += 1
        log.warning("a command was refused", user=identity.user, op=op, topic=topic)
        return BadRequest("not_entitled", detail)


def _copied(value: Value) -> Value:
    """A copy of a parsed value, as a merge uses up its delta."""
    if type(value) is dict:
        return {name: _copied(member) for name, member in value.items()}
    return [_copied(element) for element in value] if type(value) is list else value


def describe(error: Exception) -> tuple[str, str]:
    """The reason and the details of an error, as acks have them."""
    if isinstance(error, BadRequest):
        return error.reason, str(error)
    if isinstance(error, RecordRejected):
        return error.reason, error.detail
    if isinstance(error, ConfigurationError):
        return "bad_request", str(error)
    return type(error).__name__, str(error)
