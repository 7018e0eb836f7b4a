"""Sends what is published: to which Kafka topic, under which key, with which headers."""

from __future__ import annotations

from collections.abc import Mapping

from processor.client.outbox import Outbox
from processor.client.topics import TopicLookup
from processor.codec import codec_of
from processor.config import Config, TopicConfig, unknown_name
from processor.errors import ConfigurationError
from processor.kafka.publisher import Delivered, Publisher
from processor.record import Command, Value


class Publishing:
    """The publishing half of a client. Any thread."""

    def __init__(self, config: Config, lookup: TopicLookup) -> None:
        self._config = config
        self._lookup = lookup
        self._publisher = Publisher(config.kafka)
        self._outboxes: dict[str, Outbox] = {}
        self._checked: set[str] = set()

    def send(
        self,
        command: Command,
        topic: str,
        data: Value,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """Send one command; `data` means nothing to `sow_delete`, which needs a key.

        Raises:
            RecordRejected: the data has no key, or cannot be written or sent. Nothing was sent.
            ConfigurationError: no such topic, or a header that is not a publisher's.
        """
        outbox = self._outboxes.get(topic)
        if outbox is None:
            settings = publishable(self._config, topic)
            outbox = self._outboxes[topic] = Outbox(topic, settings, codec_of(self._config, topic))
        record = outbox.record(command, data, key, headers)
        if topic not in self._checked:
            self._check(topic, outbox.kafka_topic)
        self._publisher.send(outbox.kafka_topic, *record, on_delivery)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until Kafka has all that was sent.

        Raises:
            BrokerUnavailable: not in time.
            Stop: something was not delivered.
        """
        self._publisher.flush(timeout_s)

    def _check(self, topic: str, kafka_topic: str) -> None:
        """Make sure that the topic exists and splits keys as the settings say; asked once."""
        found, wanted = self._lookup.partitions(kafka_topic), self._config.topic(topic).partitions
        if found != wanted:
            raise ConfigurationError(
                f"{kafka_topic} has {found} partitions, the settings say {wanted}; "
                "`sowstream topics check` says what to do"
            )
        self._checked.add(topic)


def publishable(config: Config, name: str) -> TopicConfig:
    """The settings of a topic that may be published to.

    Raises:
        ConfigurationError: it does not exist, or only a worker writes it.
    """
    made_of = None
    if name in config.conflated:
        made_of = config.conflated[name].underlying
    elif name in config.processors:
        made_of = config.processors[name].underlying
    elif name not in config.topics:
        raise ConfigurationError(unknown_name("topic", name, [*config.topics, *config.processors]))
    if made_of is not None:
        raise ConfigurationError(f"a worker makes {name!r} of {made_of!r}; publish to {made_of!r} instead")
    return config.topic(name)
