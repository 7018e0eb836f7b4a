"""Record batches (format 2) made byte by byte, and sent in Kafka's own protocol: any bytes in any part.

One batch a broker takes and librdkafka cannot unpack: it is compressed with LZ4, and the checksum at the end of the LZ4
frame is wrong. The broker unpacks each batch that it is sent, and does not look at that checksum; librdkafka does, and
fails every fetch that begins with this batch.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Self

from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRODUCE, _VERSION = 0, 7  # The first version whose batches may be compressed by Zstandard.
_LZ4 = 3
_TIMEOUT_S = 120.0
_UINT32 = 0xFFFFFFFF

RawHeader = tuple[bytes, bytes | None]
"""A header as it is in a batch: any bytes as its name and value."""


class RawWriter:
    """Appends batches to the partitions of a topic, as they are, at the leader of its partition 0."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=_TIMEOUT_S)
        leader = metadata.brokers[metadata.topics[topic].partitions[0].leader]
        self._name = topic.encode()
        self._socket = socket.create_connection((leader.host, leader.port), _TIMEOUT_S)
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def send(self, partition: int, records: bytes) -> tuple[int, int]:
        """Append a batch; the broker's error code, 0 if it took it, and the offset of the batch's first record."""
        name = self._name
        body = struct.pack(f">hhii h{len(name)}s ii", -1, -1, 10_000, 1, len(name), name, 1, partition)
        body += struct.pack(">i", len(records)) + records
        request = struct.pack(">hhih", _PRODUCE, _VERSION, 0, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._answers.read(4))
        answer = self._answers.read(size)
        # Correlation int32, topics int32, name, partitions int32, partition int32, error int16, offset int64.
        error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
        return int(error), int(offset)


def produce_unreadable(bootstrap: str, topic: str, partition: int, values: Sequence[bytes]) -> int:
    """Append a batch that librdkafka cannot read; returns the offset of its first record."""
    return produce(bootstrap, topic, partition, batch(values))


def produce(bootstrap: str, topic: str, partition: int, records: bytes) -> int:
    """Append a batch as it is, at its leader; the offset of its first record.

    Raises:
        AssertionError: the broker refuses it.
    """
    with RawWriter(bootstrap, topic) as writer:
        error, offset = writer.send(partition, records)
    assert error == 0, f"the broker refuses the batch: error {error}"
    return offset


def batch(values: Sequence[bytes], *, checksum_flaw: int = 1) -> bytes:
    """Build a batch of these values without keys, compressed by LZ4; a flaw of 0 makes it readable."""
    plain = b"".join(raw_record(number, None, value) for number, value in enumerate(values))
    return raw_batch(_lz4(plain, checksum_flaw), len(values), attributes=_LZ4, timestamp_ms=0)


def raw_batch(records: bytes, count: int, *, attributes: int = 0, timestamp_ms: int | None = None) -> bytes:
    """Build a batch of encoded records.

    Args:
        records: compressed as the attributes say.
        count: the number of records.
        attributes: of the batch: the lowest three bits are the compression.
        timestamp_ms: of its first record; None: now.
    """
    time_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    # Attributes, last offset delta, two timestamps, producer id, epoch, sequence, count.
    checked = struct.pack(">hiqqqhii", attributes, count - 1, time_ms, time_ms, -1, -1, -1, count) + records
    head = struct.pack(">ibI", 0, 2, crc32c(checked))  # Leader epoch, magic, checksum.
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def raw_record(
    number: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[RawHeader] = (),
    *,
    timestamp_delta: int = 0,
    attributes: int = 0,
) -> bytes:
    """Encode one record; `number` is its offset in the batch."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(number) + _bytes(key) + _bytes(value)
    body += varint(len(headers)) + b"".join(varint(len(name)) + name + _bytes(text) for name, text in headers)
    return varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    rest = ((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _lz4(plain: bytes, checksum_flaw: int) -> bytes:
    """Build an LZ4 frame of one uncompressed block, with a checksum of the content."""
    descriptor = bytes([0x40 | 0x20 | 0x04, 0x70])  # Version 1, independent blocks, content checksum; blocks of 4 MiB.
    header = struct.pack("<I", 0x184D2204) + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    block = struct.pack("<I", len(plain) | 0x8000_0000) + plain
    return header + block + struct.pack("<II", 0, xxh32(plain) ^ checksum_flaw)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_of(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Compute the checksum of Kafka's batches (Castagnoli)."""
    crc, table = _UINT32, _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _UINT32


def xxh32(data: bytes) -> int:
    """Compute the checksum of LZ4's frames, with seed 0 (xxHash specification, section XXH32)."""
    primes = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    size, place = len(data), 0
    if size >= 16:
        lanes = [primes[0] + primes[1] & _UINT32, primes[1], 0, -primes[0] & _UINT32]
        for place in range(0, size - 15, 16):
            for lane, word in enumerate(struct.unpack_from("<4I", data, place)):
                lanes[lane] = _rotated(lanes[lane] + word * primes[1], 13) * primes[0] & _UINT32
        place += 16
        value = sum(_rotated(lane, shift) for lane, shift in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        value = primes[4]
    value = value + size & _UINT32
    while place + 4 <= size:
        (word,) = struct.unpack_from("<I", data, place)
        value = _rotated(value + word * primes[2], 17) * primes[3] & _UINT32
        place += 4
    for byte in data[place:]:
        value = _rotated(value + byte * primes[4], 11) * primes[0] & _UINT32
    for shift, prime in ((15, primes[1]), (13, primes[2])):
        value = (value ^ value >> shift) * prime & _UINT32
    return value ^ value >> 16


def _rotated(value: int, shift: int) -> int:
    value &= _UINT32
    return (value << shift | value >> 32 - shift) & _UINT32
