"""Checks how long records are kept: long enough for outages of workers, returning readers, snapshots and restores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topics.compaction import policies
from processor.topics.family import DAY_MS, SNAPSHOT_MS_MAX
from processor.topics.problem import ActualTopic, Problem, alter, duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.topics.family import TopicSpec

OUTAGE_MS: Final = 3 * DAY_MS
"""A long weekend, after which an operator looks."""

_FIGURE_BYTES_S: Final = 1_000_000
"""The data rate for examples that convert a size limit to a time."""

_LATE: Final[Mapping[str, str]] = {
    "delta": "a subscriber that was away for longer has to take a new snapshot",
    "queue": "messages that no consumer has acknowledged by then are gone",
    "dlq": "rejected records go before anybody has looked at them",
}
"""Topics with readers of old records, and the consequence for a reader that is late."""


def kept_ms(topic: ActualTopic) -> int | None:
    """The time that each record of a topic is kept for certain; None: for ever. Size limits are not counted."""
    policy = policies(topic)
    limits_ms = []
    if "delete" in policy and (retention_ms := topic.number("retention.ms", 7 * DAY_MS)) >= 0:
        limits_ms.append(retention_ms)
    if "compact" in policy:
        limits_ms.append(topic.number("min.compaction.lag.ms", 0))
    return min(limits_ms, default=None)


def retention_problems(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problems of records that are kept too short, or for an unknown time; no guarantee is broken by that alone."""
    if spec.role == "publish":
        return [*_input(spec, topic), *_bytes(spec, topic, "how long an outage it outlasts depends on the traffic")]
    if spec.role == "sow":
        return _sow(spec, topic)
    if spec.role in _LATE:
        return [*_late(spec, topic), *_bytes(spec, topic, _LATE[spec.role])]
    return []


def _input(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    if "delete" not in policies(topic):
        return []
    retention_ms = topic.number("retention.ms", -1)
    if not 0 <= retention_ms < OUTAGE_MS:
        return []
    what = f"keeps records for {duration(retention_ms)}: a worker that is down for longer has lost some, and stops"
    return [Problem("warn", spec.name, what, alter(spec.name, f"retention.ms={7 * DAY_MS}"))]


def _bytes(spec: TopicSpec, topic: ActualTopic, so: str) -> list[Problem]:
    """The problem of a size limit, which does not guarantee any time."""
    limit_bytes = topic.number("retention.bytes", -1)
    if "delete" not in policies(topic) or limit_bytes < 0:
        return []
    held = duration(limit_bytes * 1000 // _FIGURE_BYTES_S)
    what = f"keeps {limit_bytes:,} bytes of a partition, {held} of 1 MB/s: {so}"
    return [Problem("warn", spec.name, what, alter(spec.name, "retention.bytes=-1"))]


def _late(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    retention_ms = topic.number("retention.ms", -1)
    if not 0 <= retention_ms < DAY_MS:
        return []
    what = f"keeps records for {duration(retention_ms)}: {_LATE[spec.role]}"
    return [Problem("warn", spec.name, what, alter(spec.name, f"retention.ms={7 * DAY_MS}"))]


def _sow(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problem of a SOW topic whose readers may be overtaken by deletion: they need time for all of it."""
    wrong: list[Problem] = []
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms < SNAPSHOT_MS_MAX:
        what = f"is compacted after {duration(lag_ms)}: a snapshot that takes longer may lack records"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"min.compaction.lag.ms={SNAPSHOT_MS_MAX}")))
    deletes_ms = topic.number("delete.retention.ms", DAY_MS)
    if deletes_ms < SNAPSHOT_MS_MAX:
        what = f"forgets deletes after {duration(deletes_ms)}: deleted records come back in a restore that takes longer"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"delete.retention.ms={DAY_MS}")))
    elif deletes_ms < DAY_MS:
        what = f"forgets deletes after {duration(deletes_ms)}: a worker that was down for longer restores everything"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"delete.retention.ms={DAY_MS}")))
    segment_ms = max(lag_ms, topic.number("segment.ms", DAY_MS))
    if segment_ms > 7 * DAY_MS:
        setting = "min.compaction.lag.ms" if lag_ms == segment_ms else "segment.ms"
        what = f"{setting} is {duration(segment_ms)}: every restore and snapshot reads what was superseded since"
        ours_ms = SNAPSHOT_MS_MAX if lag_ms == segment_ms else DAY_MS
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"{setting}={ours_ms}")))
    return wrong
