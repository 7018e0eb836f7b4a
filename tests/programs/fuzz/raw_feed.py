"""Writes commands in batches of its own making, without a client library: any bytes in every part of a batch.

Next to the commands it sends batches that a broker must refuse, such as one with a wrong checksum, and counts them.
"""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from kafka import codec

from processor.kafka.partitioner import partition_for
from tests.endtoend.raw_batch import RawHeader, RawWriter, raw_batch, raw_record, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.programs.fuzz.rubbish import Command

_BATCH_RECORDS: Final = 200
_BATCH_BYTES: Final = 600_000
_PACK: Final[list[Callable[[bytes], bytes]]] = [
    bytes, codec.gzip_encode, codec.snappy_encode, codec.lz4_encode, codec.zstd_encode,
]  # fmt: skip
_BAD_NAMES: Final = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"command\xff", b"\xf5\x80\x80\x80", b"\xc3"]
_ODD_NAMES: Final = [b"", b"\0", b"x\0y", b"x\0\xff", "é\U0001d11e".encode(), b" ", b"n" * 3000]
_HOUR_MS: Final = 3_600_000


class RawFeed:
    """A writer of commands to all partitions of a topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        """Connect to the broker.

        Args:
            bootstrap: the address of a Kafka of one broker.
            topic: the input topic.
            partitions: the number of its partitions.
            seed: of the random parts.
        """
        self.refused: Counter[str] = Counter()
        """The number of batches that the broker refused, by the flaw that each was given."""
        self.taken: Counter[str] = Counter()
        """The number of batches that the broker took although they have a flaw."""
        self.errors: list[str] = []
        """Batches without a flaw that the broker refused."""
        self._where = bootstrap, topic
        self._partitions = partitions
        self._rng = random.Random(seed)

    def send(self, commands: Iterable[Command]) -> None:
        """Send all commands, each with the key's partition, and some batches with flaws between them."""
        waiting: list[list[Command]] = [[] for _ in range(self._partitions)]
        sizes = [0] * self._partitions
        self._writer = RawWriter(*self._where)
        try:
            for command in commands:
                key, value, _ = command
                number = (
                    partition_for(key, self._partitions) if key is not None else self._rng.randrange(self._partitions)
                )
                waiting[number].append(command)
                sizes[number] += len(value or b"") + len(key or b"") + 200
                if len(waiting[number]) >= _BATCH_RECORDS or sizes[number] >= _BATCH_BYTES:
                    self._flush(number, waiting[number])
                    waiting[number], sizes[number] = [], 0
            for number, left in enumerate(waiting):
                if left:
                    self._flush(number, left)
        finally:
            self._writer.close()

    def _flush(self, partition: int, commands: list[Command]) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            self._send_flawed(partition)
        now_ms = int(time.time() * 1000)
        first_ms = now_ms - rng.randrange(_HOUR_MS)  # Kafka's retention goes by the largest time of a segment.
        records = [self._record(number, command, first_ms) for number, command in enumerate(commands)]
        kind = rng.randrange(len(_PACK))
        # Log append time, the delete horizon, and bits that no version uses: the broker decides about them.
        attributes = kind | rng.choice([0, 0, 0x08, 0x40, rng.randrange(256) << 7])
        batch = raw_batch(_PACK[kind](b"".join(records)), len(records), attributes=attributes, timestamp_ms=first_ms)
        batch = batch[:12] + struct.pack(">i", rng.getrandbits(31)) + batch[16:]  # The epoch of its leader.
        error, _ = self._writer.send(partition, batch)
        if error:
            self.errors.append(f"a batch with attributes {attributes:#x} and first time {first_ms}: error {error}")

    def _record(self, number: int, command: Command, first_ms: int) -> bytes:
        """Encode a command, now and then with a header of any bytes, an old time and attributes that mean nothing."""
        rng = self._rng
        key, value, named = command
        headers: list[RawHeader] = [(name.encode(), text) for name, text in named]
        kind = rng.random()
        asks = any(name == "ack_type" for name, _ in named)
        if kind < 0.02 and not asks:  # The ledger cannot read the headers either, and so not who asked for an ack.
            headers.insert(rng.randrange(len(headers) + 1), (rng.choice(_BAD_NAMES), rng.choice([None, b"", b"1"])))
        elif 0.02 <= kind < 0.04:
            headers.append((rng.choice(_ODD_NAMES), rng.choice([None, b"\xff", rng.randbytes(20)])))
        elif 0.04 <= kind < 0.05 and not asks:
            headers.append((rng.randbytes(rng.randrange(1, 12)), rng.randbytes(rng.randrange(40))))
        elif 0.05 <= kind < 0.0505:
            headers += [(b"h%d" % count, b"") for count in range(2000)]
        delta_ms = 0 if rng.random() < 0.8 else rng.choice([-1 - first_ms, -first_ms, -5 - first_ms, -(10**15), -1])
        attributes = 0 if rng.random() < 0.9 else rng.randrange(256)
        return raw_record(number, key, value, headers, timestamp_delta=delta_ms, attributes=attributes)

    def _send_flawed(self, partition: int) -> None:
        """Send one of the batches that no broker may take."""
        rng = self._rng
        record, kind = raw_record(0, b"1", b'{"id":1,"flawed":true}'), rng.randrange(1, len(_PACK))
        packed = _PACK[kind](record)
        good, no_headers = raw_batch(record, 1), record[:-1]
        wrong = bytearray(good)
        wrong[rng.randrange(17, len(good))] ^= 1 << rng.randrange(8)
        length = varint(len(record) - 1)
        flaw, batch = rng.choice([
            ("checksum", bytes(wrong)),
            ("more records announced", raw_batch(record, 2)),
            ("no record announced", raw_batch(record, 0)),
            ("bytes behind the records", raw_batch(record + rng.randbytes(5), 1)),
            ("a record that is cut off", raw_batch(no_headers, 1)),
            ("a record longer than it says", raw_batch(length + record[len(length):] + b"\0" * 9, 1)),
            ("compressed, cut off", raw_batch(packed[: len(packed) // 2], 1, attributes=kind)),
            ("not compressed as it says", raw_batch(record, 1, attributes=rng.randrange(1, 5))),
            ("unknown compression", raw_batch(record, 1, attributes=rng.randrange(5, 8))),
            ("a control batch", raw_batch(record, 1, attributes=0x20)),
            ("a transaction without a producer", raw_batch(record, 1, attributes=0x10)),
            ("a time of the far future", raw_batch(record, 1, timestamp_ms=2**62)),
            ("a first offset", struct.pack(">q", rng.randrange(1, 2**62)) + good[8:]),
            ("another format", good[:16] + bytes([rng.choice([3, 9, 127])]) + good[17:]),
            ("cut off", good[: rng.randrange(12, len(good))]),
            ("random bytes", rng.randbytes(rng.randrange(61, 300))),
        ])  # fmt: skip
        try:
            error, _ = self._writer.send(partition, batch)
        except (OSError, struct.error):  # The broker has closed the connection.
            error = -1
            self._writer.close()
            self._writer = RawWriter(*self._where)
        (self.refused if error else self.taken)[flaw] += 1
