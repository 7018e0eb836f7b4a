"""The status of an installation as `sowstream status` and the gateway's page of operators show it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from processor.installation.configured_pipelines import pipelines
from processor.installation.pipeline_status import CONFIRMED_MS, Watched, fetch_status
from processor.kafka.clients.record_offsets import record_offsets
from processor.topics.problem import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.config import Config
    from processor.installation.pipeline_status import PartitionStatus, PipelineStatus, Status
    from processor.kafka.admin.groups import Member

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
        notes = [note for pipeline in self.status.pipelines for note in _notes(pipeline, now_ms, commands)]
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
    status = fetch_status(config.kafka, config.application_id, watched, prefix=config.topic_prefix)
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
            yield f"{topic} partition {part.partition}: the last {offsets:,} offsets are behind an open transaction"
