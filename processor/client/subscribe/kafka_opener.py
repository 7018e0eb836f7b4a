"""Opens subscriptions on Kafka: chooses the topic to read, where to begin, and the feed that makes the messages.

The first row that applies decides. "State" is needed by a snapshot, deltas, `oof`, a window, `conflation_key` and
`projection`, and kept for a subscription with a name, to which others may be added.

============================  ==============  ==========================================  =============================
request                       feed            opened by, begins                           records kept in
============================  ==============  ==========================================  =============================
deltas from now on, without   `DeltaFeed`     `_delta_feed`, now, on the delta topic;     nothing
filter and name, with plain                   a gap is filled from the SOW topic
options
with `bookmark`               `EngineFeed`    `_open_replay`, at the bookmark             `GrowingView` if state is kept
that needs or keeps state     `EngineFeed`    `_open_state`, with the oldest record, or   `KeptView` with `view_dir`,
                                              behind those of a kept view                 else `GrowingView`
all others                    `EngineFeed`    `_open_updates`, now                        nothing
============================  ==============  ==========================================  =============================

The SOW topic is read, but of a topic without a SOW the delta topic (`LiteralTopic`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from processor.client.feeds import bookmark
from processor.client.feeds.compact_records import CompactRecords, SkippedRecords
from processor.client.feeds.continuity import RecordReader
from processor.client.feeds.delta_feed import DeltaFeed
from processor.client.feeds.engine_feed import EngineFeed, OpenedTopic
from processor.client.feeds.growing_view import GrowingView, NothingKept
from processor.client.feeds.many_feeds import TopicFeed
from processor.client.feeds.snapshot_boundary import SnapshotBoundary, refuse_moved
from processor.client.subscribe.arguments import LiteralTopic, check_literal, key_text, refuse_state
from processor.client.subscribe.opener import SubscriptionOpener, TopicInfo
from processor.client.subscribe.stream import received
from processor.codec import codec_of
from processor.config import Config
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.message import Message as Kafka
from processor.kafka.message import records
from processor.kafka.partitioner import partitions_of
from processor.merge import KeyFields
from processor.record import Record, Value
from processor.subscriptions import Message, Options, SubscriptionSpec, Topic, parse_options
from processor.subscriptions.records.current_records import wall_ms
from processor.subscriptions.request.subscribe_options import FORMS, SubscribeCall
from processor.subscriptions.request.subscriber_message import MessageBuilder
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from processor.client.feeds.stored_view import KeptView

log = logging.getLogger("sowstream.client")

_Make: TypeAlias = Callable[[Sequence[Kafka]], list[Record]]

_PLAIN: Final = frozenset(("no_empties", "no_sowkey", "send_keys", "timestamp"))
"""Options that a feed of written deltas supports."""


class KafkaOpener(SubscriptionOpener[SubscriptionSpec]):
    """Opens the subscriptions of a client that reads Kafka itself."""

    def __init__(
        self,
        config: Config,
        admin: Admin,
        lookup: TopicLookup,
        *,
        name: str,
        view_dir: Path | None = None,
        skips_unreadable: bool = False,
    ) -> None:
        if skips_unreadable and view_dir is not None:
            raise ConfigurationError(
                "skip_unreadable leaves records out, and a kept view (view_dir) would keep that; use one of them"
            )
        super().__init__(received(config.telemetry))
        self.skipped = {} if skips_unreadable else None
        self._config = config
        self._kafka_topic = config.kafka_names.topic
        self._admin = admin
        self._lookup = lookup
        self._group = f"{config.group_prefix}.client.{name}"
        self._view_dir = view_dir
        self._kept: set[str] = set()  # Topics whose view's directory is in use.
        self._lock = threading.Lock()

    def understand(
        self,
        name: str,
        call: SubscribeCall,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        *,
        is_shared: bool = False,
        **arguments: Any,
    ) -> SubscriptionSpec:
        """Parse and check the arguments of a call."""
        topic, form = self._topic(name), FORMS[call]
        parsed = parse_options(options, **form, **arguments)
        if isinstance(topic, LiteralTopic):
            form = {**form, "delta": False}
        request = SubscriptionSpec(topic, filter, parsed, **form)
        check_literal(topic, request)
        if is_shared and request.options.bookmark is not None:
            raise ConfigurationError("option 'bookmark': a replay needs a stream of its own; use Client.subscribe")
        return request

    def feed(
        self, request: SubscriptionSpec, sub_id: str | None, *, delivers_meanwhile: bool = False
    ) -> TopicFeed[SubscriptionSpec]:
        """Open the feed of a request, by the table above."""
        topic, where = request.topic, request.options.bookmark
        if where is not None:
            _check_replay(where, request)
        if request.delta and not request.snapshot and _is_plain(request) and sub_id is None:
            return self._delta_feed(topic, request)
        keeps = request.needs_view or (sub_id is not None and not isinstance(topic, LiteralTopic))
        if where is not None:
            open_topic = partial(self._open_replay, topic, where, keeps=keeps)
        elif keeps:
            open_topic = partial(self._open_state, topic, delivers_meanwhile=delivers_meanwhile, follows=request.live)
        else:
            open_topic = partial(self._open_updates, topic)
        return EngineFeed(topic, open_topic, request, sub_id, keeps=keeps)

    def get(self, name: str, key: Value, *, min_version: int | None = None) -> Message | None:  # noqa: ARG002
        """The current record of a key, or None. Reads its partition only, or all if keys may be in any partition.

        Every version that was acknowledged is read: an ack is committed together with its record.
        """
        topic = self._topic(name)
        if isinstance(topic, LiteralTopic):
            raise refuse_state(name, "get")
        sow = self._kafka_topic(name, "sow")
        key_bytes = self.key_to_read(name, key).encode()
        is_anywhere = self._config.topic(name).foreign_partition == "accept"
        partitions = partitions_of(key_bytes, self._lookup.partitions(sow), is_anywhere=is_anywhere)
        boundary = SnapshotBoundary(
            self._config.kafka, self._admin, topic=sow, partitions=partitions, group=self._group, follows=False
        )
        try:
            last = _latest(boundary.between({}, boundary.ends), key_bytes)
        finally:
            boundary.close()
        if last is None or last.value is None or is_over(last, wall_ms()):
            return None
        return MessageBuilder(topic, Options(timestamp=True), delta=False).full("sow", last, topic.value(last))

    def topics(self) -> list[TopicInfo]:
        """The topics of the settings."""
        config = self._config
        kinds: dict[Literal["topic", "conflated", "view", "processor"], Iterable[str]] = {
            "topic": config.topics,
            "conflated": config.conflated,
            "view": config.views,
            "processor": config.processors,
        }
        return [
            TopicInfo(name, KeyFields(settings.key_fields).pointers, settings.message_type, kind)
            for kind, names in kinds.items()
            for name, settings in ((name, config.topic(name)) for name in names)
        ]

    def key_text(self, name: str, key: Value) -> str:
        """The SOW key of a record, of its text or of the values of its key fields."""
        fields = KeyFields(self._config.topic(name).key_fields)
        return key_text(name, key, fields, is_of_groups=self._config.has_group_keys(name))

    def _topic(self, name: str) -> Topic:
        settings = self._config.topic(name)
        if not settings.sow:
            return LiteralTopic.of(name, codec_of(self._config, name), settings)
        groups = self._config.has_group_keys(name)
        return Topic(name, codec_of(self._config, name), KeyFields(settings.key_fields), groups)

    def _delta_feed(self, topic: Topic, request: SubscriptionSpec) -> DeltaFeed:
        """Open a topic for its written deltas from now on, with all headers: they describe the delta."""
        self._refuse_moved(topic)
        sow, delta = self._kafka_topic(topic.name, "sow"), self._kafka_topic(topic.name, "delta")
        boundary, _ = self._followed(delta, records)
        read_again = RecordReader(self._config.kafka, self._admin, sow=sow, delta=delta, group=self._group)
        return DeltaFeed(topic, boundary, request.options, read_again)

    def _open_updates(self, topic: Topic, _again: bool) -> OpenedTopic:
        """Open a topic for updates from now on."""
        boundary, topic_id = self._updates(topic)
        return OpenedTopic(boundary, NothingKept(), boundary.ends, delivers_past=True, topic_id=topic_id)

    def _updates(self, topic: Topic) -> tuple[SnapshotBoundary, str]:
        """The boundary of the topic that has the full records."""
        if isinstance(topic, LiteralTopic):
            make = self._making(topic, records)  # Headers may be part of a message.
            return self._followed(self._kafka_topic(topic.name, "delta"), make)
        self._refuse_moved(topic)
        return self._followed(self._kafka_topic(topic.name, "sow"), self._making(topic, CompactRecords().records))

    def _refuse_moved(self, topic: Topic) -> None:
        """Refuse a topic that has moved, for a reader that does not begin with the first record.

        Raises:
            TopicMoved: another topic has taken its place.
        """
        sow = self._kafka_topic(topic.name, "sow")
        refuse_moved(self._config.kafka, self._admin, sow, self._lookup.partitions(sow), self._group)

    def _making(self, topic: Topic, make: _Make) -> _Make:
        """The function that creates the records of a topic; with `skip_unreadable` it leaves out invalid ones."""
        return (
            make
            if self.skipped is None
            else self.skipped.setdefault(topic.name, SkippedRecords()).readable(topic, make)
        )

    def _open_state(self, topic: Topic, again: bool, *, delivers_meanwhile: bool, follows: bool) -> OpenedTopic:
        """Open a topic for its state of the world and its updates."""
        sow = self._kafka_topic(topic.name, "sow")
        if again:
            self._lookup.forget(sow)
        partitions = self._lookup.partitions(sow)
        with ExitStack() as undo:
            make = self._making(topic, CompactRecords().records)
            boundary, topic_id = self._followed(sow, make, follows=follows)
            undo.callback(boundary.close)
            view = self._view(sow, topic_id, topic.name, partitions)
            undo.callback(view.close)
            if isinstance(view, GrowingView):
                undo.pop_all()
                return OpenedTopic(boundary, view, {}, delivers_past=False, topic_id=topic_id)
            if any(view.positions.values()):
                self._refuse_moved(topic)
            oldest = {partition: boundary.oldest(partition) for partition in boundary.ends}
            for partition, reason in view.wipe_stale(
                boundary.ends, oldest, self._admin.delete_retention_ms(sow)
            ).items():
                log.warning("the kept view of %s partition %d is read again: %s", sow, partition, reason)
            begins = {partition: max(at, oldest[partition]) for partition, at in view.positions.items()}
            undo.pop_all()
        # A view without kept records has no earlier state that updates could be missing for.
        resumes = any(view.positions.values()) and not again
        return OpenedTopic(boundary, view, begins, delivers_past=delivers_meanwhile and resumes, topic_id=topic_id)

    def _open_replay(self, topic: Topic, where: str, _again: bool, *, keeps: bool) -> OpenedTopic:
        """Open a topic for the updates since a bookmark, as far as compaction has kept them, and later ones."""
        boundary, topic_id = self._updates(topic)
        try:
            begins = bookmark.begins(where, boundary, topic_id)
        except BaseException:
            boundary.close()
            raise
        view = GrowingView(len(boundary.ends)) if keeps else NothingKept()
        return OpenedTopic(boundary, view, begins, delivers_past=True, topic_id=topic_id)

    def _view(self, sow: str, topic_id: str, name: str, partitions: int) -> GrowingView | KeptView:
        """An empty view, or the kept one unless another subscription of this client uses it."""
        if self._view_dir is None:
            return GrowingView(partitions)
        with self._lock:
            if name in self._kept:
                return GrowingView(partitions)
            self._kept.add(name)
        from processor.client.feeds.stored_view import KeptView  # noqa: PLC0415 - RocksDB: few clients keep views.

        release = partial(self._kept.discard, name)
        try:
            return KeptView(self._view_dir / name, sow, topic_id, partitions, on_close=release)
        except BaseException:
            release()
            raise

    def _followed(self, kafka_topic: str, make: _Make, *, follows: bool = True) -> tuple[SnapshotBoundary, str]:
        """The boundary of a topic that is checked for recreation, and the topic's id."""
        partitions = self._lookup.partitions(kafka_topic)
        topic_id = self._admin.topic_id(kafka_topic)  # Before the boundary: a topic recreated in between is noticed.
        boundary = SnapshotBoundary(
            self._config.kafka,
            self._admin,
            topic=kafka_topic,
            partitions=range(partitions),
            group=self._group,
            topic_id=topic_id,
            make=make,
            follows=follows,
        )
        return boundary, topic_id


def _latest(batches: Iterable[tuple[int, list[Record]]], key: bytes) -> Record | None:
    """The live record of a key; if several partitions have one, the newest."""
    last: dict[int, Record] = {}
    for partition, batch in batches:
        for record in batch:
            if record.key == key:
                last[partition] = record
    live = [record for record in last.values() if record.value is not None]
    return max(live, key=lambda record: record.timestamp_ms, default=None)


def _is_plain(request: SubscriptionSpec) -> bool:
    """Return whether the feed of written deltas can serve a request."""
    options = request.options._asdict()
    if options["conflation"] == "none":
        del options["conflation"]  # That feed never conflates.
    used = {name for name, value in options.items() if value != Options._field_defaults[name]}
    return request.filter is None and used <= _PLAIN


def _check_replay(where: str, request: SubscriptionSpec) -> None:
    """Reject an invalid bookmark, and one for a call with a snapshot.

    Raises:
        ConfigurationError: it cannot be used.
    """
    if request.snapshot:
        raise ConfigurationError(
            "option 'bookmark' begins with updates of the past, sow_and_subscribe with the state of now; use subscribe"
        )
    bookmark.check_bookmark(where)
