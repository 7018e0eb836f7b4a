"""The outputs of an engine: its SOW topic, its delta topic replayed, its dead letters."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from processor.codec import codec_options, load_codec
from processor.config import TopicConfig
from processor.merge import apply_delta, strictly_equal
from processor.record import Value
from processor.wire.headers import Name
from tests.programs.engines.commands import KINDS

PARTITIONS = 4
_COMPARED_HEADERS = (
    Name.VERSION,
    Name.KIND,
    Name.REMOVED,
    Name.EMPTY,
    Name.CORRELATION_ID,
    "client",
    "sequence",
    "traceparent",
)


@dataclass
class Kept:
    """The outputs of one family of topics."""

    sow: dict[bytes, tuple[bytes, bytes, bytes]] = field(default_factory=dict)
    """Version, value and stamps of each live record."""
    deltas: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """The number of deltas of each key, and a checksum over their contents, in order."""
    letters: Counter[tuple[bytes | None, bytes | None, bytes]] = field(default_factory=Counter)
    """Key, value and reason of each dead letter."""
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of deltas of each kind."""
    wrong: list[str] = field(default_factory=list)
    """The keys whose replayed deltas differ from the SOW topic."""


def kept(bootstrap: str, name: str, kind: str) -> Kept:
    """Read a family and replay its deltas."""
    outputs = Kept()
    for message in read(bootstrap, f"{name}.sow"):
        headers = dict(message.headers() or ())
        if message.value() is None:
            outputs.sow.pop(message.key(), None)
        else:
            outputs.sow[message.key()] = (
                headers[Name.VERSION],
                message.value(),
                headers.get(Name.GROUP_STAMPS, b""),
            )
    topic = TopicConfig(**KINDS[kind])
    codec = load_codec(topic.message_type, codec_options(topic, name="history"))
    replica: dict[bytes, Value] = {}
    for message in read(bootstrap, f"{name}.delta"):
        key, value, raw = message.key(), message.value(), message.headers() or []
        headers = dict(raw)
        kind_text = headers.get(Name.KIND, b"update").decode()
        outputs.kinds[kind_text] += 1
        count, checksum = outputs.deltas.get(key, (0, b""))
        compared = repr([(header, headers.get(header)) for header in _COMPARED_HEADERS]).encode()
        outputs.deltas[key] = (count + 1, hashlib.blake2b(checksum + compared + value, digest_size=8).digest())
        if kind_text in ("delete", "expire"):
            del replica[key]
            continue
        delta = codec.decode_command(value, raw, is_delta=True)
        replica[key] = apply_delta(replica.get(key), delta, json.loads(headers.get(Name.REMOVED, b"[]")))
    if replica.keys() != outputs.sow.keys():
        outputs.wrong.append(f"{name}: deltas leave {len(replica)} records, the SOW topic has {len(outputs.sow)}")
    for key in replica.keys() & outputs.sow.keys():
        if not strictly_equal(replica[key], codec.decode_own(outputs.sow[key][1])):
            outputs.wrong.append(f"{name}: {key!r}: replayed {replica[key]}, kept {outputs.sow[key][1]!r}")
    for message in read(bootstrap, f"{name}.dlq"):
        outputs.letters[message.key(), message.value(), dict(message.headers() or ())["dlq_reason"]] += 1
    return outputs


def differences(name: str, one: Kept, other: Kept) -> list[str]:
    """The differences between the families of two engines."""
    wrong = []
    for what in ("sow", "deltas", "letters"):
        mine, theirs = getattr(one, what), getattr(other, what)
        different = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
        wrong += [f"{name}: {what} of {key!r}: {mine.get(key)} and {theirs.get(key)}" for key in sorted(different)[:3]]
        if different:
            wrong.append(f"{name}: {what}: {len(different):,} of {len(mine.keys() | theirs.keys()):,} keys differ")
    return wrong


def read(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every committed record, read by an independent consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    todo = set(range(PARTITIONS))
    try:
        while todo:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    yield message
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    todo.discard(message.partition())
                else:
                    raise KafkaException(message.error())
    finally:
        consumer.close()
