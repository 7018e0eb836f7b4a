"""Opens subscriptions: which topic is read from where, and what is told of it."""

from __future__ import annotations

from processor.client.cut import Cut
from processor.client.envelope import Envelope
from processor.subscribe.message import Message
from processor.client.options import Options, parse_options
from processor.client.subscription import Subscription
from processor.client.topics import TopicLookup
from processor.client.updates import ComputedDeltas, Updates, WholeRecords, WrittenDeltas
from processor.codec import codec_of
from processor.config import Config
from processor.kafka.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.merge import KeyFields
from processor.topics import topic_name


class Reading:
    """The reading half of a client."""

    def __init__(self, config: Config, admin: Admin, lookup: TopicLookup, *, name: str) -> None:
        self._config = config
        self._admin = admin
        self._lookup = lookup
        self._group = f"{config.application_id}.client.{name}"
        self._open: set[Subscription] = set()

    def subscription(
        self,
        topic: str,
        options: str | None,
        *,
        snapshot: bool,
        live: bool,
        delta: bool,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Open a subscription; the cut between its past and its future is made here.

        Args:
            topic: a SOW topic or a conflated one.
            options: as `parse_options`.
            snapshot: whether it tells the state of the world first.
            live: whether it goes on from there.
            delta: whether updates are told as deltas.
            timeout_s: it ends when it has told nothing for so long.

        Raises:
            ConfigurationError: no such topic; an option that cannot be used.
            BrokerUnavailable: no answer in time.
        """
        asked = parse_options(options, live=live, delta=delta)
        envelope = self._envelope(topic, asked)
        updates = self._updates(topic, envelope, asked, snapshot=snapshot, delta=delta)
        opened = Subscription(
            self._cut(topic_name(topic, updates.role)),
            updates,
            envelope,
            loads=snapshot or isinstance(updates, ComputedDeltas),
            tells_snapshot=snapshot,
            live=live,
            timeout_s=timeout_s,
            on_close=self._open.discard,
        )
        self._open.add(opened)
        return opened

    def get(self, topic: str, key: str) -> Message | None:
        """One record as it is now, or None; only its partition is read."""
        envelope = self._envelope(topic, Options(timestamp=True))
        sow, wanted = topic_name(topic, "sow"), key.encode()
        last = None
        cut = self._cut(sow, only=partition_for(wanted, self._lookup.partitions(sow)))
        try:
            for batch in cut.before():
                for record in batch:
                    if record.key == wanted:
                        last = record
        finally:
            cut.close()
        if last is None or last.value is None:
            return None
        return envelope.message("sow", last, envelope.decode(last.value))

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._open):
            subscription.close()

    def _envelope(self, topic: str, options: Options) -> Envelope:
        return Envelope(topic, codec_of(self._config, topic), options)

    def _updates(self, topic: str, envelope: Envelope, options: Options, *, snapshot: bool, delta: bool) -> Updates:
        if not delta:
            return WholeRecords(envelope, options)
        if snapshot or options.oof:
            # An oof tells the last record, which the delta topic does not.
            key_fields = KeyFields(self._config.topic(topic).key_fields)
            return ComputedDeltas(envelope, options, key_fields, tells_snapshot=snapshot)
        return WrittenDeltas(envelope, options)

    def _cut(self, kafka_topic: str, *, only: int | None = None) -> Cut:
        partitions = range(self._lookup.partitions(kafka_topic)) if only is None else [only]
        return Cut(self._config.kafka, self._admin, topic=kafka_topic, partitions=partitions, group=self._group)
