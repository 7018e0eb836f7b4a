"""Verifies a local state: decodes all of it, compares it with its own marks and, on request, with its Kafka topic."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, RecordRejected, StateDamaged
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, oldest_offsets, read_range
from processor.kafka.message import records
from processor.operate.state_lookup import codec_for
from processor.store import layout
from processor.store.contract import stale_reason
from processor.store.inspection import opened
from processor.wire.record_headers import stored_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.codec import Codec
    from processor.config import Config
    from processor.operate.state_lookup import StatePlace
    from processor.record import Stored
    from processor.store.inspection import StateMarks, StateReader

FAULTS_MAX: Final = 20
"""Most faults of one state that are reported."""

_COUNT_INTERVAL: Final = 10_000


class Verification:
    """The check of one state; `faults` has the result."""

    def __init__(self, config: Config, place: StatePlace, *, on_read: Callable[[int], None] = lambda _: None) -> None:
        """Set up without opening anything; `on_read` is called with numbers of records that were read."""
        self.place = place
        self.faults: list[str] = []
        """The first faults, at most `FAULTS_MAX`, for people."""
        self.records = 0
        """Number of records that could be decoded."""
        self._config = config
        self._on_read = on_read
        self._digests: dict[bytes, bytes] = {}

    def run(self, *, with_topic: bool) -> None:
        """Check everything.

        Args:
            with_topic: compare the records with those of the Kafka topic, too. Memory: about 200 bytes for each key.

        Raises:
            StateLocked: a worker uses the state.
            BrokerUnavailable: Kafka does not answer.
            Stop: Kafka refuses.
        """
        try:
            with opened(self.place.directory) as reader:
                marks = reader.marks()
                if not self._check_marks(marks):
                    return
                self._check_records(reader, keeps_digests=with_topic)
        except StateDamaged as error:
            self._fault(f"damaged: {error}")
            return
        if with_topic:
            self._compare(marks)

    def _fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)
        elif len(self.faults) == FAULTS_MAX:
            self.faults.append("… and more")

    def _check_marks(self, marks: StateMarks) -> bool:
        """Check the marks; False: the records cannot be read."""
        if marks.format is None:
            self._fault("it has no mark of its format: a worker wipes it, and restores it from the SOW topic")
            return False
        if not marks.is_readable:
            ours = layout.FORMAT.decode()
            self._fault(
                f"it has format {marks.format}, and this version has {ours}: a worker wipes it, and restores it from "
                "the SOW topic"
            )
            return False
        if marks.topic is None or marks.partition is None:
            self._fault("its mark of identity names no topic and partition")
        elif marks.partition != self.place.partition:
            self._fault(f"it is a cache of {marks.topic} partition {marks.partition}, and stands in another place")
        return True

    def _check_records(self, reader: StateReader, *, keeps_digests: bool) -> None:
        """Decode all records, and compare them with the expiry index and the progress."""
        codec = codec_for(self._config, self.place.name)
        indexed = set(reader.expiring())
        progress = reader.marks().progress
        for key, stored in reader.records():
            self.records += 1
            if self.records % _COUNT_INTERVAL == 0:
                self._on_read(_COUNT_INTERVAL)
            self._check_record(codec, key, stored)
            if stored.expires_at_ms > 0:
                if (stored.expires_at_ms, key) not in indexed:
                    self._fault(f"key {_shown(key)}: it expires, and the index lacks it")
                indexed.discard((stored.expires_at_ms, key))
            if keeps_digests:
                self._digests[key] = _digest(stored)
        for _, key in sorted(indexed):
            self._fault(f"key {_shown(key)}: the index has a time at which no record of it expires")
        if self.records and progress.position == 0:
            self._fault("it has records, and position 0: a worker wipes it, and restores it from the SOW topic")

    def _check_record(self, codec: Codec | None, key: bytes, stored: Stored) -> None:
        if stored.version < 0:
            self._fault(f"key {_shown(key)}: version {stored.version}")
        if codec is not None:
            try:
                codec.decode_own(stored.value)
            except RecordRejected as error:
                self._fault(f"key {_shown(key)}: its value is not readable: {error}")

    def _compare(self, marks: StateMarks) -> None:
        """Compare the records with those of the Kafka topic."""
        topic, partition, position = marks.topic, marks.partition, marks.progress.position
        if topic is None or partition is None:
            return
        admin = Admin(self._config.kafka, self._config.connect_timeout_s)
        partitions = admin.partitions_of(topic)
        if partitions is None or partition >= partitions:
            raise ConfigurationError(f"the Kafka topic {topic} has no partition {partition}, of which this is a cache")
        if marks.topic_id not in (None, admin.topic_id(topic)):
            self._fault(f"{topic} was deleted and made again since: a worker wipes the state, and restores it")
            return
        end = admin.end_offsets(topic, [partition])[partition]
        if stale := stale_reason(marks.progress, end, admin.delete_retention_ms(topic)):
            self._fault(f"{stale[1]} (position {position} of {end}): a worker wipes the state, and restores it")
            return
        written, later = self._written(topic, partition, position, end)
        self._compare_keys(topic, written, later)

    def _written(
        self, topic: str, partition: int, position: int, end: int
    ) -> tuple[dict[bytes, bytes | None], set[bytes]]:
        """The digest of each key's last record before the position, and the keys that have later ones."""
        written: dict[bytes, bytes | None] = {}
        later: set[bytes] = set()
        reader = LogReader(self._config.kafka, group=f"{self._config.group_prefix}.client.state")
        try:
            begins = oldest_offsets(reader, topic, [partition])
            for _, batch in read_range(reader, topic, begins, {partition: end}):
                self._on_read(len(batch))
                for record in records(batch):
                    key = record.key or b""
                    if record.offset >= position:
                        later.add(key)
                        continue
                    stored = stored_from(record)
                    written[key] = None if stored is None else _digest(stored)
        finally:
            reader.close()
        return written, later

    def _compare_keys(self, topic: str, written: dict[bytes, bytes | None], later: set[bytes]) -> None:
        """Report keys that differ. A key with a later record may have that one, or one that compaction has removed."""
        for key in sorted(_keys_of(self._digests, written)):
            here, there = self._digests.get(key), written.get(key)
            if here == there or key in later:
                continue
            if here is None:
                self._fault(f"key {_shown(key)}: {topic} has a record, and the state has none")
            elif there is None:
                self._fault(f"key {_shown(key)}: the state has a record, and {topic} has none")
            else:
                self._fault(f"key {_shown(key)}: the state has another record than {topic}")


def _keys_of(digests: dict[bytes, bytes], written: dict[bytes, bytes | None]) -> Iterator[bytes]:
    yield from digests
    yield from (key for key in written if key not in digests)


def _digest(stored: Stored) -> bytes:
    return hashlib.blake2b(layout.encode_record(stored), digest_size=16).digest()


def _shown(key: bytes) -> str:
    return repr(key.decode(errors="backslashreplace"))[:100]
