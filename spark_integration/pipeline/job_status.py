"""The status of jobs, from the files of their checkpoints and from Kafka; no job is asked, and no session is needed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from processor.errors import BrokerUnavailable
from processor.installation.control_topic import ControlTopic
from processor.kafka.admin.admin import Admin
from spark_integration.foundation.options import client_properties
from spark_integration.merge.moves.merge_query import merge_name
from spark_integration.pipeline import monitor
from spark_integration.pipeline.driver_claim import LEASE_S, holder_of
from spark_integration.pipeline.job import IDENTITY_FILE
from spark_integration.pipeline.monitor import QUARANTINED

if TYPE_CHECKING:
    from spark_integration.foundation.small_files import SmallFiles
    from spark_integration.pipeline.pipeline_settings import PipelineSettings

Offsets = Mapping[str, Mapping[int, int]]
"""The next offset, by Kafka topic and partition."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of one job."""

    name: str
    """The name of the job."""
    kind: str
    """The kind of the job, as in the file."""
    epoch: int | None
    """Counts the versions of its settings and its code; None: it has never run."""
    planned: int | None
    """The number of the last micro-batch that has begun."""
    committed: int | None
    """The number of the last micro-batch that has ended; below `planned` while one runs, and after a death."""
    at: float | None
    """Time of its end, in seconds since the epoch."""
    took_s: float | None
    """Its duration."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Rows since the checkpoint was created: `published`, `written`, and `quarantined.<reason>`."""
    offsets: Offsets = field(default_factory=dict)
    """The position in Kafka; empty for other sources."""
    lag: int | None = None
    """Offsets between the position and the ends; None where Kafka is not the source."""
    state: str = "new"
    """The state in which its last driver saw it, one of `STATES`; `gone`: that driver has died; `new`: it never ran."""
    why: str = ""
    """The reason of the state, for `waiting`, `retrying`, `failed` and `gone`."""

    @property
    def quarantined(self) -> int:
        """Rows that did not fit."""
        return sum(count for name, count in self.totals.items() if name.startswith(QUARANTINED))

    def as_json(self) -> dict[str, Any]:
        """The status as plain values."""
        return asdict(self)


def job_status(name: str, kind: str, files: SmallFiles, admin: Admin | None) -> JobStatus:
    """Read the status of one job.

    Args:
        name: the name of the job.
        kind: its kind.
        files: the files in the directory of its checkpoint.
        admin: asks Kafka for the ends of the topics; None: the lag is not known.
    """
    identity = json.loads(files.read(IDENTITY_FILE) or "{}")
    progress = json.loads(files.read(monitor.FILE) or "{}")
    planned, committed = (_last(files.names(log)) for log in ("offsets", "commits"))
    # A micro-batch that has not ended is processed again.
    state, why = _state(files)
    offsets = {} if committed is None else positions(files.read(f"offsets/{committed}") or "")
    return JobStatus(
        name=name,
        kind=kind,
        epoch=identity.get("epoch"),
        planned=planned,
        committed=committed,
        at=progress.get("at"),
        took_s=progress.get("took_s"),
        totals=progress.get("totals", {}),
        offsets=offsets,
        lag=None if admin is None or not offsets else _lag(admin, offsets),
        state=state,
        why=why,
    )


def _state(files: SmallFiles) -> tuple[str, str]:
    """The state of a job, and its reason."""
    holder = holder_of(files)
    if holder is None:
        # Drivers of earlier versions left no claim.
        return ("", "") if files.names("offsets") else ("new", "")
    silent_s = time.time() - holder.at
    if holder.is_released or holder.is_alive or (holder.is_alive is None and silent_s < LEASE_S):
        return holder.state, holder.why
    return "gone", f"no sign of life of its driver for {silent_s:,.0f} s: {holder}"


def pipeline_status(
    pipeline: PipelineSettings, open_files: Callable[[str], SmallFiles | None], admin: Admin
) -> list[JobStatus]:
    """Read the status of all jobs of a file, and of the merges that ran with it or were moved to Spark.

    Args:
        pipeline: the settings.
        open_files: opens the files at a directory: `small_files` with a session or without. None: they cannot be read.
        admin: asks Kafka for the ends of the topics.
    """
    kinds = {name: job.settings.job for name, job in pipeline.jobs.items()}
    places = {name: pipeline.checkpoint(name) for name in kinds}
    files = open_files(pipeline.checkpoints)
    merges = [] if files is None else [
        name for name in files.names("")
        if name.startswith("merge-") and name.removeprefix("merge-") in pipeline.topics.topics
    ]  # fmt: skip
    places |= {name: pipeline.checkpoint(name) for name in merges} | _moved_merges(pipeline, admin)
    return [
        job_status(name, kinds.get(name, "merge"), files, admin)
        for name, place in places.items()
        if (files := open_files(place)) is not None
    ]


def _moved_merges(pipeline: PipelineSettings, admin: Admin) -> dict[str, str]:
    """The checkpoints of the merges that `takeover` has moved to Spark, by the names of their queries."""
    kafka, topics = client_properties(pipeline.topics.kafka, pipeline.spark_kafka()), pipeline.topics
    try:
        entries = ControlTopic(kafka, admin, prefix=topics.kafka_names.prefix).read(topics.application_id)
    except BrokerUnavailable:
        return {}
    fences = {} if entries is None else entries.fences
    return {merge_name(topic): fence.checkpoint for topic, fence in fences.items() if fence.is_up and fence.checkpoint}


def positions(text: str) -> dict[str, dict[int, int]]:
    """Parse a file of Spark's offset log: the next offset of each partition of its Kafka sources.

    Its first lines are the version and the metadata; each source has one more, `-` or JSON. Kafka's is an object of
    topics, each an object of partitions.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines()[2:]:
        try:
            tree = json.loads(line)
        except ValueError:
            continue
        if isinstance(tree, dict) and all(isinstance(ends, dict) for ends in tree.values()):
            found |= {topic: {int(number): end for number, end in ends.items()} for topic, ends in tree.items()}
    return found


def _lag(admin: Admin, offsets: Offsets) -> int | None:
    try:
        return sum(
            max(0, end - ends[number])
            for topic, ends in offsets.items()
            for number, end in admin.end_offsets(topic, ends).items()
        )
    except BrokerUnavailable:
        return None


def _last(names: list[str]) -> int | None:
    return max((int(name) for name in names if name.isdigit()), default=None)
