"""Three real brokers, and the current role of each."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from processor.trial.broker.server import cluster_id
from tests.programs.faults.broker.broker import Broker, Place
from tests.programs.faults.broker.ports import quiet_port
from tests.programs.faults.broker.questions import active_controller, group_coordinator, transactional_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from tests.programs.faults.clocks.skewed_clock import SkewedClock

_PATIENCE_S = 60.0


class Cluster:
    """Brokers 1 to 3, each its own controller too: three replicas of everything, two of which must be in sync."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        heap: str = "384m",
        settings: Mapping[str, str] | None = None,
        clocks: Mapping[int, SkewedClock] | None = None,
    ) -> None:
        """Configure the cluster; nothing runs before the block.

        Args:
            directory: the directory of all brokers' data.
            size: the number of brokers.
            heap: that of each `Broker`, and so are `settings`.
            settings: Kafka settings that differ from those of a test's broker.
            clocks: the wall clocks of the brokers that have another one than this machine's.
        """
        places = [Place(number, quiet_port()) for number in range(1, size + 1)]
        same = cluster_id()
        self.brokers = {
            place.node: Broker(
                directory / f"broker-{place.node}",
                places=places,
                node=place.node,
                cluster=same,
                heap=heap,
                settings=settings,
                env=clocks[place.node].env if clocks and place.node in clocks else None,
            )
            for place in places
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def group_coordinator(self, group: str) -> int:
        """The broker that keeps a group's members and offsets."""
        return self._ask_all(lambda _, port: group_coordinator(port, group), f"nobody coordinates {group}")

    def transaction_coordinator(self, prefix: str) -> int:
        """The broker that coordinates the transactions of a producer whose transactional id begins with the prefix."""
        return self._ask_all(
            lambda node, port: node if any(name.startswith(prefix) for name in transactional_ids(port)) else None,
            f"nobody coordinates transactions of {prefix}",
        )

    def controller(self) -> int:
        """The broker that is the active controller: the leader of the metadata quorum."""
        return self._ask_all(lambda _, port: active_controller(port), "no active controller")

    def leader(self, topic: str, partition: int) -> int:
        """The leader of a partition."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(topic, timeout=15)
        return int(metadata.topics[topic].partitions[partition].leader)

    def await_in_sync(self) -> None:
        """Wait until every replica is in sync again: only then may the next broker be lost."""
        deadline_s = time.monotonic() + _PATIENCE_S
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while behind := self._behind(admin):
            assert time.monotonic() < deadline_s, f"not in sync after {_PATIENCE_S:g} s: {behind[:5]}"
            time.sleep(0.2)  # Between two polls; the observed state decides.

    def __enter__(self) -> Self:
        for broker in self.brokers.values():
            broker.begin()
        for broker in self.brokers.values():
            broker.await_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A broker stopped in good order would wait for a controller that no longer runs.
        for broker in self.brokers.values():
            with contextlib.suppress(AssertionError):
                broker.kill()

    def _behind(self, admin: AdminClient) -> list[str]:
        try:
            topics = admin.list_topics(timeout=5).topics.values()
        except KafkaException as error:
            return [str(error)]
        return [
            f"{topic.topic}/{number}"
            for topic in topics
            for number, partition in topic.partitions.items()
            if len(partition.isrs) < len(partition.replicas)
        ]

    def _ask_all(self, ask: Callable[[int, int], int | None], failure: str) -> int:
        """Send a request to one broker after the other, by number and port, until one answers; return its answer."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            for node, broker in self.brokers.items():
                with contextlib.suppress(OSError, struct.error, IndexError):
                    if (answer := ask(node, broker.port)) is not None:
                        return answer
            assert time.monotonic() < deadline_s, failure
            time.sleep(0.1)  # Between two polls; the observed state decides.
