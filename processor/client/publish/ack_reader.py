"""The thread that reads acks: it settles pending commands and runs delivery callbacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from processor.client.publish.pending_acks import PendingAcks
from processor.errors import AcksMissing, SowstreamError, Stop
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.message import Message
from processor.wire.ack import read_ack

_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


class AckReader:
    """Reads ack topics on a thread of its own, from a start offset of each partition, until it is closed.

    While Kafka does not answer, it retries, as librdkafka does. A permanent error ends it: then all pending commands
    fail with that error.
    """

    def __init__(
        self, kafka: Mapping[str, str], pending_acks: PendingAcks, *, group: str, serve: Callable[[], None]
    ) -> None:
        """Create the reader; its thread starts with the first topic.

        Args:
            kafka: librdkafka properties.
            pending_acks: the commands that acks settle.
            group: the reader's name for the brokers; the group is never joined.
            serve: called many times a second, to run delivery callbacks.
        """
        self._kafka = kafka
        self._pending_acks = pending_acks
        self._group = group
        self._serve = serve
        self._asked: list[Position] = []
        self._topics: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_this_thread(self) -> bool:
        """True if the caller is a callback of this reader."""
        return threading.current_thread() is self._thread

    def watch(self, topic: str, positions: list[Position]) -> None:
        """Read the acks of one more topic.

        Args:
            topic: the SOW topic.
            positions: the start offset of each partition of the ack topic.
        """
        with self._lock:
            self._topics[positions[0].topic] = topic
            self._asked += positions
            if self._thread is None:
                # A forgotten client does not keep the program from ending.
                self._thread = threading.Thread(target=self._run, name="sowstream-acks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread; pending commands fail."""
        self._closing.set()
        if self._thread is not None and not self.is_this_thread:
            self._thread.join(_CLOSE_TIMEOUT_S)
        self._pending_acks.fail(AcksMissing("the client was closed before the ack came; the record itself is in Kafka"))

    def _run(self) -> None:
        try:
            reader = LogReader(self._kafka, group=self._group)
            try:
                while not self._closing.is_set():
                    self._turn(reader)
            finally:
                reader.close()
        except SowstreamError as error:
            self._pending_acks.fail(error)
        except Exception as error:
            log.exception("the thread that reads acks ends")
            self._pending_acks.fail(Stop(f"acks cannot be read any more: {error!r}"))

    def _turn(self, reader: LogReader) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        if asked:
            reader.add(asked)
        # A read of many messages would wait until there are as many.
        messages = reader.read(1, _WAIT_S).messages + reader.read(_READ_MAX, 0).messages
        try:
            self._serve()
        except Exception:
            log.exception("on_delivery raised")
        for message in messages:
            if self._pending_acks.waits_for(message.key()):  # Acks of other clients are skipped without parsing.
                self._take(message)

    def _take(self, message: Message) -> None:
        kafka_topic, partition = message.topic() or "", message.partition()
        assert partition is not None
        try:
            ack = read_ack(self._topics[kafka_topic], message.value() or b"")
        except ValueError as error:
            log.warning("%s partition %d offset %s: %s", kafka_topic, partition, message.offset(), error)
        else:
            self._pending_acks.apply_ack(partition, ack)
