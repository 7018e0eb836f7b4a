"""A batch of records that a broker takes and librdkafka cannot unpack, sent in Kafka's own protocol.

It is compressed with LZ4, and the checksum at the end of the LZ4 frame is wrong. The broker unpacks each batch that it
is sent, and does not look at that checksum; librdkafka does, and fails every fetch that begins with this batch.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRODUCE, _VERSION = 0, 3
_LZ4 = 3
_TIMEOUT_S = 10.0
_UINT32 = 0xFFFFFFFF


def produce_unreadable(bootstrap: str, topic: str, partition: int, values: Sequence[bytes]) -> int:
    """Append a batch that librdkafka cannot read; returns the offset of its first record."""
    return produce(bootstrap, topic, partition, batch(values))


def produce(bootstrap: str, topic: str, partition: int, records: bytes) -> int:
    """Append a batch as it is, at its leader; the offset of its first record.

    Raises:
        AssertionError: the broker refuses it.
    """
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=15)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    name = topic.encode()
    body = struct.pack(f">hhii h{len(name)}s ii", -1, -1, 10_000, 1, len(name), name, 1, partition)
    body += struct.pack(">i", len(records)) + records
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 0, -1) + body
    with socket.create_connection((leader.host, leader.port), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # Correlation int32, topics int32, name, partitions int32, partition int32, error int16, offset int64.
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, f"the broker refuses the batch: error {error}"
    return int(offset)


def batch(values: Sequence[bytes], *, checksum_flaw: int = 1) -> bytes:
    """Build a record batch (magic 2) of these values without keys, compressed by LZ4; a flaw of 0 makes it readable."""
    plain = b"".join(_record(number, value) for number, value in enumerate(values))
    packed = _lz4(plain, checksum_flaw)
    count = len(values)
    # Attributes, last offset delta, two timestamps, producer id, epoch, sequence, count.
    checked = struct.pack(">hiqqqhii", _LZ4, count - 1, 0, 0, -1, -1, -1, count) + packed
    head = struct.pack(">ibI", 0, 2, crc32c(checked))  # Leader epoch, magic, checksum.
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def _record(number: int, value: bytes) -> bytes:
    """Encode attributes, timestamp delta, offset delta, no key, the value, no headers."""
    body = b"\x00" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    rest = (value << 1) ^ (value >> 31)
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


def crc32c(data: bytes) -> int:
    """Compute the checksum of Kafka's batches (Castagnoli)."""
    crc = _UINT32
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
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
