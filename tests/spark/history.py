"""Topics with records of chosen times, and with chosen settings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import until_described


class History:
    """The topics of one family, written record by record, each with its own time."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.options = {"kafka.bootstrap.servers": bootstrap}
        self.client = {"bootstrap.servers": bootstrap}

    def create(self, role: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; dots in names of settings are written as two underscores."""
        settings = {name.replace("__", "."): text for name, text in config.items()}
        # Held in a variable: a client that is collected takes its answers with it.
        admin = AdminClient(self.client)
        topics = [NewTopic(f"{self.name}.{role}", partitions, 1, config=settings)]
        made = admin.create_topics(topics)
        for each in made.values():
            each.result(120)
        until_described(admin, [*made])

    def write(
        self,
        role: str,
        *records: tuple[str, bytes | str | None],
        at: dt.datetime | None = None,
        partition: int = 0,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> None:
        """Write keys with their values to one partition, all with the same time and headers."""
        producer = Producer(self.client | {"linger.ms": 0})
        stamp = {} if at is None else {"timestamp": round(at.timestamp() * 1000)}
        for key, value in records:
            producer.produce(
                f"{self.name}.{role}", value, key, partition=partition, headers=dict(headers or {}), **stamp
            )
        assert producer.flush(120) == 0, "the broker did not take the records in time"
