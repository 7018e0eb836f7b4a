"""The control topic for operators' commands: notices of workers, orders of operators, fences of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.errors import ConfigurationError
from processor.installation.shared_topic import SharedTopic
from processor.store.marks import FENCE_NAME
from processor.topics.family import control_spec
from processor.wire.control import ALL_PARTITIONS, Failure, Fence, Key, Notice, Order, decode, decode_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.installation.shared_topic import SharedRecords
    from processor.kafka.admin.admin import Admin
    from processor.record import Outgoing


def fence_mark(fence: Fence) -> Outgoing:
    """Return the record of a mark topic with a fence; where workers may merge, the mark is removed."""
    return FENCE_NAME, fence.encode() if fence.is_up else None, []


class ControlEntries(NamedTuple):
    """The workers' notices of one application."""

    held: Mapping[str, Mapping[int, Notice]]
    """The partitions that are held, by pipeline."""
    failed: Mapping[str, Mapping[str, Failure]]
    """The processes in which a pipeline has failed, by pipeline."""
    fences: Mapping[str, Fence]
    """The engine that merges each pipeline; a pipeline without a fence is merged by its workers."""
    end: int
    """The end of the control topic when it was read."""


class ControlTopic(SharedTopic):
    """The control topic of one installation. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, prefix: str = "") -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            prefix: the prefix of all topic names of the installation.
        """
        super().__init__(kafka, admin, control_spec(prefix))

    def read(self, application_id: str, timeout_s: float | None = None) -> ControlEntries | None:
        """Read the present notices of an application; None if there is no control topic. Errors as `read_records`."""
        records = self.read_records(timeout_s)
        return None if records is None else _entries(application_id, records)

    def refuse_missing(self) -> None:
        """Make sure that the topic exists, also while an open transaction of a dead process holds its readers back.

        Raises:
            ConfigurationError: it does not exist.
            Stop: Kafka refuses, or does not answer.
        """
        if self._admin.partitions_of(self.topic) is None:
            raise ConfigurationError(
                f"the topic {self.topic} does not exist, which shows workers who merges: run `sowstream topics apply`, "
                "and restart workers that are older than it"
            )

    def read_existing(self, application_id: str) -> ControlEntries:
        """Read the present notices of an application, of a topic that must exist. Errors as `read`."""
        self.refuse_missing()
        entries = self.read(application_id)
        assert entries is not None
        return entries

    def fence(self, entries: ControlEntries | None, pipeline: str, mark: str) -> Fence | None:
        """The fence of a pipeline; None: there is none.

        Where the control topic has none, as one that was deleted and created again, the marks of the pipeline have it.

        Args:
            entries: the entries of the control topic; None: there is no such topic.
            pipeline: the pipeline's name.
            mark: its mark topic.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: the mark topic cannot be read to its end.
        """
        if entries is not None and pipeline in entries.fences:
            return entries.fences[pipeline]
        partitions = self._admin.partitions_of(mark)
        if partitions is None:
            return None
        messages, _ = self._read_topic(mark, partitions, None)
        marks = {message.partition(): message.value() for message in messages if message.key() == FENCE_NAME}
        fences = [
            fence for value in marks.values() if value is not None and (fence := decode(Fence, value)) is not None
        ]
        return max(fences, key=lambda fence: fence.at_ms, default=None)

    def write_order(self, application_id: str, pipeline: str, order: Order) -> None:
        """Write an order. Errors as `write_records`."""
        place = ALL_PARTITIONS if order.partition is None else str(order.partition)
        key = Key("resume", application_id, pipeline, place)
        self.write_records([(key.encode(), order.encode())], partition=0)


def _entries(application_id: str, records: SharedRecords) -> ControlEntries:
    held: dict[str, dict[int, Notice]] = {}
    failed: dict[str, dict[str, Failure]] = {}
    fences: dict[str, Fence] = {}
    for data, value in records.latest.items():
        key = decode_key(data)
        if key is None or value is None or key.application_id != application_id:
            continue
        if key.kind == "held" and key.place.isdecimal() and (notice := decode(Notice, value)) is not None:
            held.setdefault(key.pipeline, {})[int(key.place)] = notice
        elif key.kind == "failed" and (failure := decode(Failure, value)) is not None:
            failed.setdefault(key.pipeline, {})[key.place] = failure
        elif key.kind == "fence" and (fence := decode(Fence, value)) is not None:
            fences[key.pipeline] = fence
    return ControlEntries(held, failed, fences, records.ends[0])
