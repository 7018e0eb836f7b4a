"""Runs several processors without Kafka: the output of one is the input of the next, in every partition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.testing.driver import BEHIND_MS, ProcessorTestDriver

if TYPE_CHECKING:
    from pydantic import BaseModel

    from processor.api import Processor, Record, Value
    from processor.testing.driver import GivenHeaders


class ProcessorTestChain:
    """Processors over the records of one topic, with all partitions, and the topic's settings in one place.

    ::

        chain = ProcessorTestChain(TopicConfig(partitions=2))
        chain.add(Count, name="visits")
        chain.add(Large, {"field": "count", "at_least": 5}, name="regulars", underlying="visits")
        chain.pipe_input("visits", "anna", {"page": "/"})
        chain.commit()
        records = chain.read_output("regulars", "sow")

    A commit goes down the chain: each processor receives the committed records of the one before, and is committed
    too.
    """

    def __init__(
        self,
        topic: TopicConfig | None = None,
        *,
        registry: Mapping[str, str] | None = None,
        now_ms: int = 1_700_000_000_000,
        behind_ms: int = BEHIND_MS,
    ) -> None:
        """Create a chain without processors.

        Args:
            topic: the settings of the records, of all families of the chain, and its number of partitions; by default
                those of a topic with one partition.
            registry: settings of a schema registry's client, such as `{"url": "mock://tests"}`.
            now_ms: the time of all clocks at the beginning, milliseconds since the epoch.
            behind_ms: the time by which the stream times are behind the clocks while no record comes; 0: not at all.
        """
        self.topic = topic or TopicConfig(partitions=1)
        """The settings of the records."""
        self._registry = registry
        self._now_ms, self._behind_ms = now_ms, behind_ms
        self._families: dict[str, list[ProcessorTestDriver]] = {}

    def add(
        self,
        processor_type: type[Processor],
        settings: BaseModel | Mapping[str, Any] | None = None,
        *,
        name: str,
        underlying: str | None = None,
    ) -> None:
        """Add a processor behind those that are there, in each partition.

        Args:
            processor_type: the plug-in.
            settings: its settings, or the mapping that its settings model validates; None: the topic's settings for a
                processor that takes these, else its defaults.
            name: the family of its outputs.
            underlying: the family whose records it reads, which was added before; None: it reads its own input.

        Raises:
            ValueError: the name is taken, or the underlying family is not in the chain.
        """
        if name in self._families:
            raise ValueError(f"the chain has a processor {name!r}")
        if underlying is not None and underlying not in self._families:
            raise ValueError(f"the chain has no processor {underlying!r} under {name!r}; add it first")
        if settings is None:
            settings = self.topic if processor_type.settings_type is TopicConfig else {}
        self._families[name] = []
        for partition in range(self.topic.partitions):
            driver = ProcessorTestDriver(
                processor_type,
                settings,
                name=name,
                topic=self.topic,
                underlying=underlying,
                partition=partition,
                partitions=self.topic.partitions,
                registry=self._registry,
                now_ms=self._now_ms,
                behind_ms=self._behind_ms,
            )
            driver.on_commit = partial(self._deliver, name, partition)
            self._families[name].append(driver)

    def driver(self, name: str, partition: int = 0) -> ProcessorTestDriver:
        """Return the driver of one partition: its state, its rejections, its crashes."""
        return self._families[name][partition]

    def pipe_input(
        self,
        name: str,
        key: str | bytes | None,
        value: Value,
        headers: GivenHeaders = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Deliver one record to a processor.

        Args:
            name: the processor.
            key: the Kafka record key.
            value: bytes as they are, None for a tombstone; the codec writes anything else.
            headers: the Kafka headers.
            partition: the input partition; None: the one that the key's hash chooses, 0 without a key.
            timestamp_ms: the timestamp; None: the time of the clock.
        """
        if partition is None:
            partition = self._home(key.encode() if isinstance(key, str) else key)
        self._families[name][partition].pipe_input(key, value, headers, timestamp_ms=timestamp_ms)

    def commit(self) -> None:
        """Commit all processors in their order, each after it has received the output of those before."""
        for drivers in self._families.values():
            is_first = True
            while is_first or any(driver.has_input for driver in drivers):
                is_first = False
                for driver in drivers:
                    driver.feed()
                    driver.commit()

    def advance_time(self, ms: int) -> None:
        """Move all clocks, and punctuate the processors in their order."""
        self._now_ms += ms
        for drivers in self._families.values():
            for driver in drivers:
                driver.advance_time(ms)

    def crash(self) -> None:
        """Kill all processes and start others."""
        for drivers in self._families.values():
            for driver in drivers:
                driver.crash()

    def read_output(self, name: str, output: str) -> list[Record]:
        """Return the committed records of an output topic, partition after partition."""
        return [record for driver in self._families[name] for record in driver.read_output(output)]

    def _home(self, key: bytes | None) -> int:
        return 0 if key is None else partition_for(key, self.topic.partitions)

    def _deliver(self, name: str, partition: int, sent: Mapping[str, list[Record]]) -> None:
        """Append the committed records of a partition to the inputs that read them."""
        for family, drivers in self._families.items():
            pipeline = drivers[partition].pipeline
            if (pipeline.underlying or family) != name:
                continue
            role = pipeline.processor_type.input.role
            is_repartitioned = family == name and role in pipeline.repartitioned
            for record in sent.get(role, ()):
                target = self._home(record.key) if is_repartitioned else partition
                drivers[target].append_input(record.key, record.value, record.headers)
