"""Notes the arrival time of each record of some topics; the records themselves are read after the run."""

from __future__ import annotations

import threading
import time
from array import array
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

_BATCH_MAX = 10_000
_PAUSE_S = 0.1


class Arrivals:
    """A reader of committed records in the background: `with Arrivals(...) as arrivals: ...`."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int) -> None:
        """Prepare the reader.

        Args:
            bootstrap: the broker.
            topics: the topics to read, from the beginning.
            partitions: number of partitions of each topic.
        """
        self.ends: dict[tuple[str, int], int] = {}
        """The end offset of each partition when its end was last reached, with transaction markers counted."""
        self._places = [(topic, partition) for topic in topics for partition in range(partitions)]
        self._offsets = {place: array("q") for place in self._places}
        self._at_ms = {place: array("d") for place in self._places}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "arrivals",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self._places])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        if self._failure is not None and error is None:
            raise self._failure

    def of(self, topics: Sequence[str], partition: int) -> dict[str, dict[int, float]]:
        """The arrival time of each record of a partition, in milliseconds since the epoch, by topic and offset."""
        return {
            topic: dict(zip(self._offsets[topic, partition], self._at_ms[topic, partition], strict=True))
            for topic in topics
        }

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - raised where the block is left.
            self._failure = error

    def _turn(self) -> None:
        first = self._consumer.poll(_PAUSE_S)  # `consume` would wait for a full batch.
        if first is None:
            return
        messages = [first, *self._consumer.consume(_BATCH_MAX, 0)]
        now_ms = time.time() * 1000
        for message in messages:
            place = (message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self.ends[place] = offset
                continue
            self._offsets[place].append(offset)
            self._at_ms[place].append(now_ms)
