"""A topic family that tests write to like a worker: in transactions, with exact headers, to chosen partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from processor.client import Message, Subscription
from processor.codec.json import JsonCodec
from processor.config import Config
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.record import Headers, Value
from processor.topics.family import family_specs
from tests.waiting import PATIENCE_S

PARTITIONS = 3
END = "end"


class Family:
    """One SOW topic and its conflated copy, with methods that write to them."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.conflated = f"{name}_5s"
        self.config = Config.model_validate(
            {
                "kafka": {"bootstrap.servers": bootstrap},
                "topics": {name: {"key": ["/id"], "partitions": PARTITIONS}},
                "conflated": {self.conflated: {"underlying": name}},
            }
        )
        self.admin = Admin(self.config.kafka)
        specs = [
            *family_specs(name, ("publish", "sow", "delta", "ack", "dlq"), partitions=PARTITIONS),
            *family_specs(self.conflated, ("sow", "delta", "dlq"), partitions=PARTITIONS),
        ]
        self.topics = self.admin.create(specs)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0, "linger.ms": 0}
        )
        self._producer.init_transactions(PATIENCE_S)

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        """Commit the records written inside together, or roll them back."""
        self._producer.begin_transaction()
        yield
        self._producer.flush(PATIENCE_S)
        if commit:
            self._producer.commit_transaction(PATIENCE_S)
        else:
            self._producer.abort_transaction(PATIENCE_S)

    def finish(self) -> None:
        """Write a record to the end of every partition, so that a reader recognizes the end."""
        with self.transaction():
            for role in ("sow", "delta"):
                for partition in range(PARTITIONS):
                    headers = [("version", "1"), ("kind", "insert")]
                    self._producer.produce(
                        f"{self.name}.{role}", b'{"id":"end"}', f"{END}{partition}".encode(), partition, headers=headers
                    )

    def rest(self, subscription: Subscription) -> list[Message]:
        """All further messages of the subscription about the records written so far."""
        self.finish()
        subscription.timeout_s = PATIENCE_S
        messages, ends = [], 0
        for message in subscription:
            if message.data == {"id": "end"}:
                ends += 1
            else:
                messages.append(message)
            if ends == PARTITIONS:
                break
        assert ends == PARTITIONS
        return messages

    def write(self, topic: str, key: str, value: Any, **headers: str) -> None:
        """Write one record within a transaction; None is a tombstone."""
        data = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        partition = partition_for(key.encode(), PARTITIONS)
        self._producer.produce(topic, data, key.encode(), partition, headers=list(headers.items()))

    def sow(self, key: str, value: Any, version: int = 1, **headers: str) -> None:
        """Write one SOW record in a transaction of its own."""
        with self.transaction():
            self.write(f"{self.name}.sow", key, value, version=str(version), **headers)

    def ack(self, key: str, client: str, value: bytes, topic: str = "") -> None:
        """Write one ack in a transaction of its own, on the partition of the record's key."""
        with self.transaction():
            partition = partition_for(key.encode(), PARTITIONS)
            self._producer.produce(f"{topic or self.name}.ack", value, client.encode(), partition)

    def delta(self, key: str, value: Any, version: int = 1, **headers: str) -> None:
        """Write one delta record in a transaction of its own."""
        with self.transaction():
            self.write(f"{self.name}.delta", key, value, version=str(version), **headers)


class Framed(JsonCodec):
    """A message type whose deltas list their fields in a header, as Avro's do."""

    uses_headers = True

    def encode_delta(self, delta: Value) -> tuple[bytes, Headers]:
        """The values, and separately their names."""
        return self.encode(list(delta.values())), [("fields", self.encode(list(delta)))]

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:
        """Restore the names from the header, if it is a delta."""
        value = self.decode(data)
        return dict(zip(self.decode(dict(headers)["fields"]), value, strict=True)) if is_delta else value


class Whole(JsonCodec):
    """A message type that carries full records only, as protobuf does."""

    can_delta = False
