"""Reads the status of pipelines from Kafka alone, and reports it as `sowstream status` and the gateway show it.

It has the owners of partitions, their progress, and what is held.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from processor.installation.configured_pipelines import pipelines
from processor.installation.control_topic import ControlTopic
from processor.installation.hold import REMEDIES
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.kafka.clients.record_offsets import record_offsets
from processor.topics.problem import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from processor.config import Config
    from processor.installation.control_topic import ControlEntries
    from processor.kafka.admin.groups import Member
    from processor.wire.control import Failure, Fence, Notice


CONFIRMED_MS: Final = 900_000
"""Age up to which a notice counts as current: a worker writes it again with each retry, at most five minutes apart."""


_STANDS_S: Final = 1.0  # Ordinary transactions end within this time.
_Place: TypeAlias = tuple[str, int]  # A topic and a partition number.


class Watched(NamedTuple):
    """A pipeline whose status is wanted."""

    name: str
    """The pipeline's name."""
    source: str
    """Its input topic."""
    sow: str | None
    """Its SOW topic, if it has one."""


class PartitionStatus(NamedTuple):
    """The status of a partition."""

    partition: int
    """The partition number."""
    owner: Member | None
    """The worker that owns it."""
    offset: int | None
    """The committed input offset; None: there is none."""
    end: int | None
    """The end of the input; None: Kafka has no answer at present."""
    open_behind: Mapping[str, int]
    """Topics with an open transaction, with the number of offsets that readers cannot read yet."""
    held: Notice | None
    """The notice that it is held; None: no worker reports that."""

    @property
    def lag(self) -> int | None:
        """Input offsets still to be processed; None if unknown."""
        return None if self.offset is None or self.end is None else max(0, self.end - self.offset)

    @property
    def is_held(self) -> bool:
        """True if it is held."""
        return self.held is not None

    def to_do(self, pipeline: str) -> str:
        """The operator's next step; empty if it is not held."""
        if self.held is None:
            return ""
        return REMEDIES.get(self.held.reason, "").format(topic=pipeline, partition=self.partition)


class PipelineStatus(NamedTuple):
    """The status of a pipeline."""

    name: str
    """The pipeline's name."""
    group: str
    """Its consumer group."""
    state: str
    """The state of the group in Kafka's words; `dead` if there is none."""
    partitions: Sequence[PartitionStatus]
    """Its partitions."""
    failed: Mapping[str, Failure]
    """The processes in which it has failed."""
    fence: Fence | None = None
    """The fence before its workers, if it is up: Spark merges the topic, or its merge is being moved."""

    @property
    def is_well(self) -> bool:
        """True if no part of it is held or has failed."""
        return not self.failed and not any(partition.is_held for partition in self.partitions)


class Status(NamedTuple):
    """The status of all pipelines that were asked for."""

    pipelines: Sequence[PipelineStatus]
    """The status of each pipeline."""
    has_control: bool
    """True if there is a control topic; without it held partitions are unknown."""

    @property
    def is_well(self) -> bool:
        """True if no pipeline is held or has failed."""
        return all(pipeline.is_well for pipeline in self.pipelines)


def fetch_status(config: Config, watched: Sequence[Watched]) -> Status:
    """Fetch the status of pipelines from Kafka.

    Args:
        config: the settings.
        watched: the pipelines.

    Raises:
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses.
    """
    kafka = config.kafka
    admin, groups = Admin(kafka, config.connect_timeout_s), GroupInspector(kafka)
    topics = admin.cluster().topics
    entries = ControlTopic(kafka, admin, prefix=config.topic_prefix).read(config.application_id)
    places = {one.name: [(one.source, number) for number in range(topics.get(one.source, 0))] for one in watched}
    outputs = [(one.sow, number) for one in watched if one.sow is not None for number in range(topics.get(one.sow, 0))]
    everywhere = {place for inputs in places.values() for place in inputs} | set(outputs)
    ends = groups.bounds(everywhere, "end")
    stable = _standing(groups, ends)
    names = {one.name: f"{config.group_prefix}.{one.name}" for one in watched}
    states = groups.groups(list(names.values()))
    offsets = groups.offsets({names[name]: inputs for name, inputs in places.items() if inputs})
    now_ms = int(time.time() * 1000)
    result = []
    for one in watched:
        group = names[one.name]
        owners = states[group].owners
        partitions = [
            _partition(one, place, owners.get(place), offsets[group], ends, stable, entries)
            for place in places[one.name]
        ]
        failed = {} if entries is None else dict(entries.failed.get(one.name, {}))
        fresh = {name: failure for name, failure in failed.items() if now_ms - failure.at_ms <= CONFIRMED_MS}
        fence = None if entries is None else entries.fences.get(one.name)
        shown = fence if fence is not None and fence.is_up else None
        result.append(PipelineStatus(one.name, group, states[group].state, partitions, fresh, shown))
    return Status(result, entries is not None)


def _standing(groups: GroupInspector, ends: Mapping[_Place, int | None]) -> dict[_Place, int]:
    """The last stable offsets that are before the end and do not move."""
    before = _behind(groups, ends, ends)
    if not before:
        return {}
    time.sleep(_STANDS_S)
    after = _behind(groups, ends, before)
    return {place: offset for place, offset in after.items() if before[place] == offset}


def _behind(groups: GroupInspector, ends: Mapping[_Place, int | None], places: Iterable[_Place]) -> dict[_Place, int]:
    stable = groups.bounds(places, "stable_end")
    return {
        place: offset
        for place, offset in stable.items()
        if offset is not None and (end := ends[place]) is not None and offset < end
    }


def _partition(
    one: Watched,
    place: _Place,
    owner: Member | None,
    offsets: Mapping[_Place, int | None],
    ends: Mapping[_Place, int | None],
    stable: Mapping[_Place, int],
    entries: ControlEntries | None,
) -> PartitionStatus:
    number = place[1]
    offset = offsets.get(place)
    notice = None if entries is None else entries.held.get(one.name, {}).get(number)
    if notice is not None and offset is not None and 0 <= notice.offset < offset:
        notice = None  # Its worker died before it could remove the notice: the partition has gone on since.
    open_behind = {}
    for topic in (one.source, one.sow):
        if topic is None:
            continue
        end, stable_end = ends.get((topic, number)), stable.get((topic, number))
        if end is not None and stable_end is not None:
            open_behind[topic] = end - stable_end
    return PartitionStatus(number, owner, offset, ends.get(place), open_behind, notice)


Records: TypeAlias = "Mapping[tuple[str, int], int]"
"""The records in the lag of a pipeline's partition."""


class StatusReport(NamedTuple):
    """The status of pipelines, with the records in their lags."""

    application_id: str
    """The application of the pipelines."""
    status: Status
    """Their owners, positions and holds."""
    records: Records
    """The records in each lag that is small enough to be read; the others are missing."""

    def lag(self, pipeline: str, part: PartitionStatus) -> int | None:
        """The lag of a partition: in records where they were counted, else in offsets; None if unknown."""
        return self.records.get((pipeline, part.partition), part.lag)

    def notes(self, commands: Mapping[str, str]) -> list[str]:
        """Sentences about what a table of the partitions has no room for.

        Args:
            commands: the command that runs each topic.
        """
        now_ms = int(time.time() * 1000)
        # Pipelines that read one topic have the same open transactions.
        notes = [*dict.fromkeys(note for one in self.status.pipelines for note in _notes(one, now_ms, commands))]
        if not self.status.has_control:
            notes.append(
                "Whether anything is held is not known: there is no _sowstream.control (`sowstream topics apply`)."
            )
        return notes

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON's values."""
        return {
            "application_id": self.application_id,
            "has_control_topic": self.status.has_control,
            "is_well": self.status.is_well,
            "pipelines": [
                {
                    "name": pipeline.name,
                    "group": pipeline.group,
                    "group_state": pipeline.state,
                    "fence": None if pipeline.fence is None else pipeline.fence.model_dump(),
                    "failed": [{"process": name, **failure.model_dump()} for name, failure in pipeline.failed.items()],
                    "partitions": [
                        {
                            **_part_as_json(pipeline.name, part),
                            "lag_records": self.records.get(
                                (pipeline.name, part.partition), 0 if part.lag == 0 else None
                            ),
                        }
                        for part in pipeline.partitions
                    ],
                }
                for pipeline in self.status.pipelines
            ],
        }


def status_report(config: Config, topics: Sequence[str] = ()) -> StatusReport:
    """Fetch the status from Kafka, without asking a worker.

    Args:
        config: the settings.
        topics: the topics, conflated topics and views that are meant; none: all.

    Raises:
        ConfigurationError: no such topic.
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses.
    """
    watched = [
        Watched(pipeline.name, pipeline.source, pipeline.output("sow") if pipeline.has_state else None)
        for pipeline in pipelines(config, list(topics))
    ]
    status = fetch_status(config, watched)
    return StatusReport(config.application_id, status, _records_of_lags(config, status, watched))


def _records_of_lags(config: Config, status: Status, watched: Sequence[Watched]) -> Records:
    sources = {one.name: one.source for one in watched}
    lags = [
        (pipeline.name, (sources[pipeline.name], part.partition), part.offset, part.end)
        for pipeline in status.pipelines
        for part in pipeline.partitions
        if part.offset is not None and part.end is not None and sources[pipeline.name] not in part.open_behind
    ]
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for _, place, begin, end in lags:
        ranges[place] = (min(begin, ranges.get(place, (begin, end))[0]), end)
    found = record_offsets(config.kafka, f"{config.group_prefix}.status", ranges)
    return {
        (name, place[1]): sum(begin <= offset < end for offset in found[place])
        for name, place, begin, end in lags
        if place in found
    }


def _part_as_json(pipeline: str, part: PartitionStatus) -> dict[str, Any]:
    held = None
    if part.held is not None:
        since = datetime.fromtimestamp(part.held.since_ms / 1000, UTC).isoformat()
        held = {**part.held.model_dump(), "since": since, "to_do": part.to_do(pipeline)}
    return {
        "partition": part.partition,
        "owner": None if part.owner is None else _owner_as_json(part.owner),
        "offset": part.offset,
        "end": part.end,
        "lag": part.lag,
        "open_transactions": dict(part.open_behind),
        "held": held,
    }


def _owner_as_json(owner: Member) -> dict[str, str | None]:
    """The owner's names and address; its partitions are those of the status that name it."""
    names = {"member_id": owner.member_id, "client_id": owner.client_id}
    return {**names, "host": owner.host, "instance": owner.instance}


def _notes(pipeline: PipelineStatus, now_ms: int, commands: Mapping[str, str]) -> Iterator[str]:
    if not pipeline.partitions:
        yield f"{pipeline.name}: its input topic does not exist; `sowstream topics apply` creates it"
    elif pipeline.fence is not None:
        yield f"{pipeline.name}: {pipeline.fence.sentence(pipeline.name)}"
    elif all(part.owner is None for part in pipeline.partitions):
        moving = pipeline.state not in {"dead", "empty", "stable"}
        command = commands.get(pipeline.name) or commands.get(pipeline.name.partition(".")[0])
        start = f"; `{command}` starts one" if command else ""
        yield f"{pipeline.name}: " + ("its partitions are moving" if moving else f"no worker{start}")
    for name, failure in pipeline.failed.items():
        yield f"{pipeline.name}: failed in {name} (process {failure.pid}): {failure.message}"
    for part in pipeline.partitions:
        if part.held is not None:
            age_ms = now_ms - part.held.at_ms
            stale = f" (said {duration(max(0, age_ms))} ago: its worker may be gone)" if age_ms > CONFIRMED_MS else ""
            at = "" if part.held.offset < 0 else f" at offset {part.held.offset}"
            yield f"{pipeline.name} partition {part.partition} is held{at}: {part.held.message}{stale}"
        for topic, offsets in part.open_behind.items():
            last = "last offset is" if offsets == 1 else f"last {offsets:,} offsets are"
            yield f"{topic} partition {part.partition}: the {last} behind an open transaction"
