"""Waits until everything published has passed through all stages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from processor.kafka.admin.admin import Admin
from processor.kafka.readers.log_reader import LogReader
from processor.tools.demo.settings import CONFLATED, PARTITIONS, TOPICS, VIEW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.tools.demo.settings import DemoSetup
    from processor.tools.demo.watcher import Watcher

_ASK_S: Final = 0.5


class Drain:
    """Compares committed offsets with the ends, stage by stage; used when the feeds have stopped.

    A publish topic has only plain records, so the committed offset reaches its end. A SOW topic also has transaction
    markers, which no commit passes: the target is the offset after its last record.
    """

    def __init__(self, setup: DemoSetup, watcher: Watcher) -> None:
        self._setup = setup
        self._watcher = watcher
        self._admin = Admin(setup.config.kafka)
        # The input of each stage: its topic's name and role, in the order in which records pass.
        self._inputs: dict[str, tuple[str, str]] = {name: (name, "publish") for name in TOPICS}
        self._inputs |= {name: (underlying, "sow") for name, (underlying, _) in CONFLATED.items()}
        self._inputs |= {f"{VIEW}.split": ("orders", "sow"), VIEW: (VIEW, "parts")}
        self._readers = {name: LogReader(setup.config.kafka, group=setup.group(name)) for name in self._inputs}
        self._waiting = list(self._readers)

    def outstanding(self) -> str | None:
        """A description of the work that is left; None when there is none."""
        while self._waiting:
            name = self._waiting[0]
            source, role = self._inputs[name]
            aims = self._input_ends(name) if role == "publish" else self.last_records(source, role)
            if aims is None:
                return f"reading {source}.{role} to its end"
            if left := self._left(name, aims):
                return f"{name}: {left:,} records to go"
            self._waiting.pop(0)
        return None

    def last_records(self, name: str, role: str = "sow") -> dict[tuple[str, int], int] | None:
        """The offset behind the last record of each partition of a topic; None until the watcher has read it."""
        topic = self._setup.topic(name, role)
        ends = self._ends(topic)
        with self._watcher.lock:
            seen = self._watcher.seen
            if any(seen.ends.get((topic, partition), 0) < end for partition, end in ends.items()):
                return None
            return {place: offset + 1 for place, offset in seen.last.items() if place[0] == topic}

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers.values():
            reader.close()

    def _left(self, name: str, aims: Mapping[tuple[str, int], int]) -> int:
        left = 0
        for (topic, partition), aim in aims.items():
            committed = 0
            with contextlib.suppress(TimeoutError):
                committed = self._readers[name].committed(topic, partition, _ASK_S) or 0
            left += max(0, aim - committed)
        return left

    def _input_ends(self, name: str) -> dict[tuple[str, int], int]:
        topic = self._setup.topic(name, "publish")
        return {(topic, partition): end for partition, end in self._ends(topic).items() if end}

    def _ends(self, topic: str) -> dict[int, int]:
        return self._admin.end_offsets(topic, range(PARTITIONS))
