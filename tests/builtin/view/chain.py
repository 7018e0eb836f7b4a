"""The stages of a view over a topic's SOW records, in all partitions, without Kafka."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from processor.builtin.view.aggregate import ViewAggregate
from processor.builtin.view.partial_aggregate import ViewPartialAggregate
from processor.builtin.view.projection import ViewProjection
from processor.builtin.view.split import ViewSplit
from processor.config import TopicConfig, ViewConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from processor.wire.view_parts import member_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.api import Codec

NOW_MS = 1_700_000_000_000


class AggregateChain:
    """A view with groups: a first stage for each partition of the topic, and an aggregate for each of the view's."""

    def __init__(
        self, view: Mapping[str, Any], *, inputs: int = 2, partitions: int = 2, checks_state: bool = True
    ) -> None:
        self.is_compact = False
        """True if records are written without spaces, as workers write them."""
        self.settings = ViewConfig.model_validate({"underlying": "orders", **view})
        topic = TopicConfig(partitions=inputs)
        rows = self.settings.topic(topic)
        self.now_ms = NOW_MS
        first = ViewPartialAggregate if self.settings.partial_aggregation else ViewSplit
        self.splits = [
            ProcessorTestDriver(
                first, self.settings, name="v.split", topic=topic, underlying="orders", partition=number,
                partitions=inputs, outlets={"parts": partitions}, now_ms=NOW_MS, checks_state=checks_state,
            )
            for number in range(inputs)
        ]  # fmt: skip
        self.aggregates = [
            ProcessorTestDriver(
                ViewAggregate, self.settings, name="v", topic=rows, partition=number, partitions=partitions,
                now_ms=NOW_MS, checks_state=checks_state,
            )
            for number in range(partitions)
        ]  # fmt: skip
        for split in self.splits:
            split.on_commit = self._route

    def put(self, partition: int, key: str, record: Any, *, at_ms: int | None = None) -> Record:
        """Append a SOW record, or a tombstone for None; it is read by the next `run`."""
        split = self.splits[partition]
        separators = (",", ":") if self.is_compact else None
        value = None if record is None else json.dumps(record, separators=separators).encode()
        at = self.now_ms if at_ms is None else at_ms
        sow = Record(key.encode(), value, [("version", b"1")], len(split.input), at)
        split.input.append(sow)
        return sow

    def run_splits(self) -> None:
        """Let the first stage read, and commit it; once more, as the first flush may find that it has to read again."""
        for split in self.splits:
            split.feed()
            for ms in (1, 0):
                split.advance_time(ms)
                split.commit()

    def run_aggregates(self) -> None:
        """Let the second stage read, and commit it; once more, as the first flush may find groups to build."""
        for aggregate in self.aggregates:
            aggregate.feed()
            for ms in (1, 0):
                aggregate.advance_time(ms)
                aggregate.commit()

    def run(self) -> None:
        """Let both stages read everything."""
        self.run_splits()
        self.run_aggregates()

    def rows(self) -> dict[str, Any]:
        """The rows that the view has, by key."""
        rows: dict[str, Any] = {}
        for aggregate in self.aggregates:
            own: dict[str, Any] = {}
            for record in aggregate.read_output("sow"):
                assert record.key is not None
                own[record.key.decode()] = None if record.value is None else json.loads(record.value)
            present = {key: row for key, row in own.items() if row is not None}
            assert not rows.keys() & present.keys(), "a row in two partitions"
            rows |= present
        return rows

    def _route(self, sent: Mapping[str, list[Record]]) -> None:
        for output, records in sent.items():
            role, _, partition = output.partition("@")
            if role == "parts":
                for record in records:
                    self.aggregates[int(partition)].append_input(record.key, record.value, record.headers)


def projection(view: Mapping[str, Any], input_codec: Codec | None = None) -> ProcessorTestDriver:
    """A projection over one partition, whose records are JSON unless another message type is passed."""
    settings = ViewConfig.model_validate({"underlying": "orders", **view})
    topic = TopicConfig(partitions=1)
    return ProcessorTestDriver(
        ViewProjection,
        settings,
        name="v",
        topic=settings.topic(topic),
        underlying="orders",
        now_ms=NOW_MS,
        input_codec=input_codec,
    )


__all__ = ["NOW_MS", "AggregateChain", "member_key", "projection"]
