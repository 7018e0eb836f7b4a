"""Sends what is published: to which Kafka topic, under which key, with which headers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from processor.client.publish.acknowledged import Acknowledged, Asked
from processor.client.publish.deleting import Gathered, Selection, check, deletes
from processor.client.publish.outbox import Outbox
from processor.client.publish.outstanding import OnAck
from processor.client.topic_lookup import TopicLookup
from processor.codec import codec_of
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.producers.publisher import Delivered, Publisher
from processor.record import Command, Value
from processor.wire.ack import Ack, AckType, ack_types


class Publishing:
    """The publishing half of a client. Any thread."""

    def __init__(self, config: Config, admin: Admin, lookup: TopicLookup, *, name: str) -> None:
        self._config = config
        self._lookup = lookup
        self._publisher = Publisher(config.kafka)
        self._outboxes: dict[str, Outbox] = {}
        self._checked: set[str] = set()
        self._acknowledged = Acknowledged(config, admin, lookup, self._publisher, name=name)

    def send(
        self,
        command: Command,
        topic: str,
        data: Value,
        *,
        key: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_delivery: Delivered | None = None,
        ack: str | None = None,
        on_ack: OnAck | None = None,
        sequence: int | None = None,
        expiration: float | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> Future[Ack] | None:
        """Send one command other than `sow_delete`. Arguments, future and errors as `Client.publish`."""
        outbox = self._outbox(topic)
        record = outbox.record(
            command,
            data,
            key,
            headers,
            expiration=expiration,
            correlation_id=correlation_id,
            command_id=command_id,
        )
        types = _types(ack, on_ack, is_delete=False)
        if topic not in self._checked:
            self._check(topic, outbox.kafka_topic)
        if types or sequence is not None:
            asked = Asked(types, on_ack, sequence, command_id)
            return self._acknowledged.send(topic, outbox.kafka_topic, record, asked, on_delivery)
        self._publisher.send(outbox.kafka_topic, *record, on_delivery)
        return None

    def delete(
        self,
        topic: str,
        selection: Selection,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        on_delivery: Delivered | None = None,
        ack: str | None = None,
        on_ack: OnAck | None = None,
        sequence: int | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> Future[Ack] | None:
        """Send the commands of a delete. Arguments, future and errors as `Client.sow_delete`."""
        check(selection, has_sequence=sequence is not None)
        outbox = self._outbox(topic)
        types = _types(ack, on_ack, is_delete=True)
        if topic not in self._checked:
            self._check(topic, outbox.kafka_topic)
        commands = deletes(
            selection,
            outbox,
            partial(self._lookup.partitions, outbox.kafka_topic),
            headers,
            correlation_id=correlation_id,
            command_id=command_id,
            is_anywhere=self._config.topic(topic).foreign_partition == "accept",
        )
        asked = Asked(types, on_ack, sequence, command_id)
        gathered = Gathered(topic, types[-1], command_id) if types else None
        for record, partition in commands:
            if not types and sequence is None:
                self._publisher.send(outbox.kafka_topic, *record, on_delivery, partition=partition)
                continue
            future = self._acknowledged.send(topic, outbox.kafka_topic, record, asked, on_delivery, partition=partition)
            if future is not None and len(commands) == 1 and selection.filter is None and selection.keys is None:
                return future
            if future is not None and gathered is not None:
                gathered.add(future)
        return None if gathered is None else gathered.sent()

    def flush(self, timeout_s: float | None) -> None:
        """Wait until Kafka has all that was sent, and all acks asked for have come.

        Raises:
            BrokerUnavailable: Kafka does not take it in time.
            AcksMissing: acks do not come in time.
            Stop: something was not delivered.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._publisher.flush(timeout_s)
        self._acknowledged.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))

    def deliver(self, timeout_s: float) -> None:
        """Wait until Kafka has all that was sent; acks are not waited for. Errors as `flush`."""
        self._publisher.flush(timeout_s)

    def close(self) -> None:
        """End the thread that reads acks; futures that are not done fail."""
        self._acknowledged.close()

    def _outbox(self, topic: str) -> Outbox:
        outbox = self._outboxes.get(topic)
        if outbox is None:
            settings = publishable(self._config, topic)
            outbox = self._outboxes[topic] = Outbox(
                topic, settings, codec_of(self._config, topic), self._config.kafka_names
            )
        return outbox

    def _check(self, topic: str, kafka_topic: str) -> None:
        """Make sure that the topic exists and splits keys as the settings say; asked once."""
        found, wanted = self._lookup.partitions(kafka_topic), self._config.topic(topic).partitions
        if found != wanted:
            raise ConfigurationError(
                f"{kafka_topic} has {found} partitions, the settings say {wanted}; "
                "`sowstream topics check` says what to do"
            )
        self._checked.add(topic)


def _types(ack: str | None, on_ack: OnAck | None, *, is_delete: bool) -> tuple[AckType, ...]:
    """The acks that a command asks for."""
    types = () if ack is None else ack_types(ack, is_delete=is_delete)
    if on_ack is not None and not types:
        raise ConfigurationError("on_ack is told acks; ask for some, such as ack='persisted'")
    return types


def publishable(config: Config, name: str) -> TopicConfig:
    """The settings of a topic that may be published to.

    Raises:
        ConfigurationError: it does not exist, or only a worker writes it.
    """
    if name not in {**config.topics, **config.processors, **config.conflated}:
        raise ConfigurationError(config.no_topic(name, [*config.topics, *config.processors]))
    if (made_of := config.underlying(name)) is not None:
        raise ConfigurationError(f"a worker makes {name!r} of {made_of!r}; publish to {config.root(name)!r} instead")
    return config.topic(name)
