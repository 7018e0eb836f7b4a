"""Sends published commands: chooses the Kafka topic, key and headers; and reads numbers from the mark topic."""

from __future__ import annotations

import copy
import time
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeAlias

from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.client.publish.acked_publisher import AckedPublisher
from processor.client.publish.deleting import CombinedAcks, Selection, check, deletes
from processor.client.publish.outbox import Outbox, PublishOptions
from processor.codec import codec_of
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.publisher import Publisher
from processor.record import Command, Headers, Value
from processor.telemetry.tracing import Spans, spans_of
from processor.wire.ack import Ack, AckType
from processor.wire.forwarding import is_mark_of
from processor.wire.publisher_headers import encoded
from processor.wire.publisher_mark import PublisherMark, mark_text


def read_mark(config: Config, admin: Admin, lookup: TopicLookup, topic: str, client: str) -> int | None:
    """Return the highest number of a client that was taken, over all partitions of a topic; None: none was.

    Args:
        config: the settings.
        admin: administration of the cluster.
        lookup: the partitions of its topics.
        topic: a SOW topic.
        client: the publisher's name.

    Raises:
        ConfigurationError: the mark topic does not exist, or this user may not see it.
        BrokerUnavailable: no answer in time.
        Stop: it cannot be read.
    """
    kafka_topic, name = config.kafka_names.topic(topic, "mark"), encoded(client, "the client's name")
    boundary = SnapshotBoundary(
        config.kafka,
        admin,
        topic=kafka_topic,
        partitions=range(lookup.partitions(kafka_topic)),
        group=f"{config.group_prefix}.client.{client}",
        follows=False,
        has_marks=False,
    )
    last: dict[tuple[int, bytes], bytes | None] = {}
    try:
        for partition, batch in boundary.between({}, boundary.ends):
            for record in batch:
                if record.key is not None and is_mark_of(record.key, name):
                    last[partition, record.key] = mark_text(record.key, record.value, record.headers)
    finally:
        boundary.close()
    highest = max((PublisherMark(text).highest for text in last.values() if text is not None), default=-1)
    return None if highest < 0 else highest


OutboxRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers | None]
"""Kafka key, value and headers of a command."""


class CommandSender:
    """Sends the commands of a client. Any thread."""

    def __init__(self, config: Config, admin: Admin, lookup: TopicLookup, *, name: str) -> None:
        self._config, self._admin, self._name = config, admin, name
        self._lookup = lookup
        self._publisher = Publisher(config.kafka)
        self._spans: Spans | None = spans_of(config.telemetry)
        self._outboxes: dict[str, Outbox] = {}
        self._checked: set[str] = set()
        self._acked_publisher = AckedPublisher(config, admin, lookup, self._publisher, name=name)

    def named(self, name: str) -> Self:
        """A sender under another name, over the same connections: a name costs neither a thread nor a file."""
        other = copy.copy(self)
        other._name, other._acked_publisher = name, self._acked_publisher.named(name)  # noqa: SLF001
        return other

    def send(
        self, command: Command, topic: str, data: Value, key: str | None, options: PublishOptions
    ) -> Future[Ack] | None:
        """Send one command other than `sow_delete`. Arguments, future and errors as `Client.publish`."""
        outbox = self._outbox(topic)
        record = outbox.record(command, data, key, options.headers, **options.of_headers())
        types = self._types(topic, options, is_delete=False)
        if topic not in self._checked:
            self._check(topic, outbox.kafka_topic)
        if self._spans is not None:
            return self._send_traced(self._spans, command, topic, record, types, options)
        return self._send(topic, outbox.kafka_topic, record, types, options)

    def _send(
        self,
        topic: str,
        kafka_topic: str,
        record: OutboxRecord,
        types: tuple[AckType, ...],
        options: PublishOptions,
        partition: int | None = None,
    ) -> Future[Ack] | None:
        if types or options.sequence is not None:
            return self._acked_publisher.send(topic, kafka_topic, record, types, options, partition=partition)
        self._publisher.send(kafka_topic, *record, options.on_delivery, partition=partition)
        return None

    def _send_traced(
        self,
        spans: Spans,
        command: Command,
        topic: str,
        record: OutboxRecord,
        types: tuple[AckType, ...],
        options: PublishOptions,
        partition: int | None = None,
    ) -> Future[Ack] | None:
        """Send a command with a span, and its trace in the headers."""
        key, value, own = record
        headers: Headers = list(own or ())
        with spans.publish(topic, command, headers) as context:
            record = key, value, headers or None
            future = self._send(topic, self._outboxes[topic].kafka_topic, record, types, options, partition)
        if future is not None and context is not None:
            spans.settle(topic, context, future)
        return future

    def delete(self, topic: str, selection: Selection, options: PublishOptions) -> Future[Ack] | None:
        """Send the commands of a delete. Arguments, future and errors as `Client.sow_delete`."""
        is_conditional = options.expect_version is not None
        check(selection, has_sequence=options.sequence is not None, is_conditional=is_conditional)
        outbox = self._outbox(topic)
        types = self._types(topic, options, is_delete=True)
        if topic not in self._checked:
            self._check(topic, outbox.kafka_topic)
        commands = deletes(
            selection,
            outbox,
            partial(self._lookup.partitions, outbox.kafka_topic),
            options,
            is_anywhere=self._config.topic(topic).foreign_partition == "accept",
        )
        if is_conditional and len(commands) > 1:
            raise ConfigurationError(f"expect_version is for one record, and {topic!r} may have its keys anywhere")
        gathered = CombinedAcks(topic, types[-1], options.command_id) if types else None
        for record, partition in commands:
            if self._spans is None:
                future = self._send(topic, outbox.kafka_topic, record, types, options, partition)
            else:
                future = self._send_traced(self._spans, "sow_delete", topic, record, types, options, partition)
            if future is not None and len(commands) == 1 and selection.filter is None and selection.keys is None:
                return future
            if future is not None and gathered is not None:
                gathered.add(future)
        return None if gathered is None else gathered.sent()

    def mark(self, topic: str) -> int | None:
        """Return the highest number of this client's name that was taken. Errors as `Client.mark`."""
        publishable(self._config, topic)
        return read_mark(self._config, self._admin, self._lookup, topic, self._name)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until Kafka has all sent records, and all requested acks have arrived.

        Raises:
            BrokerUnavailable: Kafka does not take it in time.
            AcksMissing: acks do not come in time.
            Stop: something was not delivered.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._publisher.flush(timeout_s)
        self._acked_publisher.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))

    def deliver(self, timeout_s: float) -> None:
        """Wait until Kafka has all sent records, without waiting for acks. Errors as `flush`."""
        self._publisher.flush(timeout_s)

    @property
    def is_calling_back(self) -> bool:
        """True on the thread that reads acks."""
        return self._acked_publisher.is_calling_back

    def close(self) -> None:
        """End the thread that reads acks; futures that are not done fail."""
        self._acked_publisher.close()

    def _outbox(self, topic: str) -> Outbox:
        outbox = self._outboxes.get(topic)
        if outbox is None:
            settings = publishable(self._config, topic)
            outbox = self._outboxes[topic] = Outbox(
                topic, settings, codec_of(self._config, topic), self._config.kafka_names
            )
        return outbox

    def _types(self, topic: str, options: PublishOptions, *, is_delete: bool) -> tuple[AckType, ...]:
        """The acks that a command asks for.

        Raises:
            ConfigurationError: an ack type does not exist, or the topic has no versions to expect.
        """
        if options.expect_version is not None and not self._config.topic(topic).sow:
            raise ConfigurationError(f"{topic!r} keeps no records (sow: false), so none has a version to expect")
        return options.ack_types(is_delete=is_delete)

    def _check(self, topic: str, kafka_topic: str) -> None:
        """Check once that the topic exists and has the partitions that the settings describe.

        One that is to move may have grown: its workers forward what is published to any of its partitions.
        """
        actual, configured = self._lookup.partitions(kafka_topic), self._config.topic(topic).partitions
        may_have_grown = self._config.successor(topic) is not None
        if actual != configured and not (may_have_grown and actual > configured):
            raise ConfigurationError(
                f"{kafka_topic} has {actual} partitions, the settings say {configured}; "
                "`sowstream topics check` says what to do"
            )
        self._checked.add(topic)


def publishable(config: Config, name: str) -> TopicConfig:
    """The settings of a topic that may be published to.

    Raises:
        ConfigurationError: it does not exist, or only a worker writes it.
    """
    if name not in config.names:
        raise ConfigurationError(config.no_topic(name, [*config.topics, *config.processors]))
    if (origin := config.underlying(name)) is not None:
        source = origin
        while (below := config.underlying(source)) is not None:
            source = below
        raise ConfigurationError(f"a worker makes {name!r} of {origin!r}; publish to {source!r} instead")
    return config.topic(name)
