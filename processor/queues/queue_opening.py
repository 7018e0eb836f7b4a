"""Opens queues: checks the share group, joins it, and connects the parts of a consumer."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from processor.codec import codec_of
from processor.errors import ConfigurationError
from processor.kafka.clients.publisher import Publisher
from processor.kafka.message_reader import close_all
from processor.queues.consumer import OnQueueMessage, Queue
from processor.queues.lease_backlog import Backlog, QueueDeadLetters
from processor.queues.share_groups import ShareGroups, group_problems, settings_in_force
from processor.queues.stall_guard import ShareGroupView, StallGuard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.codec import Codec
    from processor.config import Config
    from processor.kafka.admin.topic_lookup import TopicLookup
    from processor.queues.transport.leases import Lease, Place
    from processor.record import Value

log = logging.getLogger(__name__)

BACKLOG_MAX: int = 2_000
"""Most messages of one consumer at a time: Kafka leases so many of a partition to all consumers together."""
_PATIENCE_LEASES: Final = 1.2
_PATIENCE_MIN_S: Final = 5.0


class QueueOpener:
    """Opens the queues of a client and closes them."""

    def __init__(self, config: Config, lookup: TopicLookup) -> None:
        self._config = config
        self._lookup = lookup
        self._open: set[Queue] = set()
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()

    def queue(
        self, name: str, *, max_backlog: int, timeout_s: float | None, on_message: OnQueueMessage | None
    ) -> Queue:
        """Join a queue. Arguments and errors as `Client.queue`."""
        try:
            from processor.queues.transport.share_member import ShareReader  # noqa: PLC0415 - slow, and an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"consumers of queues need {error.name}: pip install 'sowstream[queues]'"
            ) from None
        config, settings = self._config, self._config.queue(name)
        if not 1 <= max_backlog <= BACKLOG_MAX:
            raise ConfigurationError(f"max_backlog is {max_backlog!r}; it is 1 to {BACKLOG_MAX}")
        names, group = config.kafka_names, config.share_group(name)
        topic, letters = names.topic(name, "queue"), names.topic(name, "dlq")
        self._lookup.partitions(letters)
        partitions = range(self._lookup.partitions(topic))
        actual = ShareGroups(config.kafka).settings(group)
        problems = group_problems(group, settings, actual)
        if refused := [f"  {problem}" for problem in problems if problem.severity == "refuse"]:
            raise ConfigurationError("\n".join([f"the share group of queue {name!r} cannot be used:", *refused]))
        for problem in problems:
            log.warning("queue %s: %s", name, problem)
        settings = settings_in_force(settings, actual)
        codec = codec_of(config, settings.underlying)
        lost: list[Backlog] = []

        def on_lost(places: Sequence[Place], why: str) -> None:
            for backlog in lost:
                backlog.lost(places, why)

        reader = ShareReader(
            config.kafka,
            group=group,
            topic=topic,
            absence_max_s=settings.lease,
            on_lost=on_lost,
        )
        view = ShareGroupView(config.kafka, group, topic, partitions)
        source = StallGuard(reader, view, patience_s=max(_PATIENCE_MIN_S, _PATIENCE_LEASES * settings.lease_ms / 1000))
        backlog = Backlog(
            name,
            settings,
            source,
            QueueDeadLetters(self._letters_publisher(), queue_topic=topic, topic=letters),
            partial(_decode, codec),
            max_backlog,
        )
        lost.append(backlog)
        queue = Queue(backlog, timeout_s=timeout_s, on_message=on_message, on_close=self._open.discard)
        self._open.add(queue)
        return queue

    def close(self) -> None:
        """End all queues; messages without an outcome are released.

        Raises:
            Exception: the first error, once all have ended.
        """
        close_all(self._open)

    def _letters_publisher(self) -> Publisher:
        with self._lock:
            if self._publisher is None:
                self._publisher = Publisher(self._config.kafka)
            return self._publisher


def _decode(codec: Codec, lease: Lease) -> Value:
    return codec.decode_own(lease.record.value or b"")
