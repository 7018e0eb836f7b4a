"""All metrics of a worker in one table; threads update them once per batch, never per record."""

from __future__ import annotations

import math
import platform
import shutil
import threading
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from processor.hosting.context import BOUNDS_S, Timing
from processor.kafka import outage
from processor.kafka.admin.admin import librdkafka_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from processor.runtime.task import Counts
    from processor.runtime.task_state import TaskState


class Timings(Collector):
    """A histogram of the metrics registry, by labels."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.labels = labels
        self._documentation = documentation
        self._lock = threading.Lock()  # Metrics are served by a thread of their own.
        self._timings: dict[tuple[str, ...], Timing] = {}

    def add(self, timing: Timing, *labels: str) -> None:
        """Add observations to the series of these labels."""
        with self._lock:
            self._of(labels).include(timing)

    def observe(self, durations: Iterable[tuple[float, int]], *labels: str) -> None:
        """Add durations in seconds to that series, each so many times."""
        with self._lock:
            timing = self._of(labels)
            for seconds, times in durations:
                timing.add(seconds, times)

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Yield the name alone; the registry calls it at the registration."""
        yield HistogramMetricFamily(self.name, self._documentation, labels=self.labels)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yield the histogram with its present counts."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=self.labels)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        with self._lock:
            for labels, timing in self._timings.items():
                buckets = list(zip(bounds, map(float, accumulate(timing.counts)), strict=True))
                family.add_metric(labels, buckets, timing.seconds)
        yield family

    def _of(self, labels: tuple[str, ...]) -> Timing:
        timing = self._timings.get(labels)
        if timing is None:
            timing = self._timings[labels] = Timing()
        return timing


_PARTITION: Final = ("processor", "partition")
"""The labels of a partition's series."""
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

CONSUMED = Counter("sowstream_records_consumed_total", "Input records given to a processor.", ["processor"])
EMITTED = Counter("sowstream_records_emitted_total", "Records forwarded to an output.", ["processor", "output"])
EMITTED_BYTES = Counter("sowstream_emitted_bytes_total", "Bytes of their values.", ["processor", "output"])
REJECTED = Counter("sowstream_records_rejected_total", "Input records sent to the DLQ.", ["processor", "reason"])
EVENTS = Counter("sowstream_events_total", "What a processor counts itself.", ["processor", "event"])
GAUGES = Gauge("sowstream_gauge", "What a processor says of itself now.", ["processor", "partition", "gauge"])
_OWN_GAUGES: Final = {
    "view_ready": Gauge("sowstream_view_ready", "1 when a stage of a view has caught up with its input.", _PARTITION),
    "groups_in_memory": Gauge(
        "sowstream_view_groups_in_memory", "Groups of a view whose figures are in memory.", _PARTITION
    ),
    "rounds": Gauge("sowstream_view_rounds", "Keys of a join whose references are being answered.", _PARTITION),
    "pending_keys": Gauge(
        "sowstream_conflation_pending_keys", "Keys that wait for the end of their interval.", _PARTITION
    ),
    "pending_bytes": Gauge("sowstream_conflation_pending_bytes", "Memory that waiting updates take.", _PARTITION),
    "oldest_pending_seconds": Gauge(
        "sowstream_conflation_oldest_pending_seconds", "Age of the oldest waiting key.", _PARTITION
    ),
    "interval_seconds": Gauge("sowstream_conflation_interval_seconds", "Length of an interval now.", _PARTITION),
}
"""The metrics of our own processors' gauges. Until 0.2 these are shown as `sowstream_gauge`, too."""
OBSERVED = Timings(
    "sowstream_observed_seconds", "How long things took that a processor observed.", ("processor", "timing")
)
LATENESS = Timings(
    "sowstream_conflation_lateness_seconds", "From the end of a key's interval to its delivery.", ("processor",)
)
END_TO_END = Timings(
    "sowstream_end_to_end_latency_seconds", "From a record's timestamp to the commit of its results.", ("processor",)
)
_OWN_TIMINGS: Final = {"lateness": LATENESS}
"""The same of timings, and of `sowstream_observed_seconds`."""
for _timings in (OBSERVED, LATENESS, END_TO_END):
    REGISTRY.register(_timings)
COMMITS = Histogram(
    "sowstream_commit_seconds", "How long transactions took to commit.", ["processor"], buckets=_SECONDS
)
LAST_COMMIT = Gauge("sowstream_last_commit_timestamp_seconds", "When a transaction was last committed.", ["processor"])
ABORTED = Counter("sowstream_transactions_aborted_total", "Transactions rolled back.", ["processor", "cause"])
REBALANCES = Counter("sowstream_rebalances_total", "Changes of the assignment.", ["processor", "kind"])
WORKED = Counter("sowstream_worked_seconds_total", "Time spent processing.", ["processor"])
WAITED = Counter("sowstream_waited_seconds_total", "Time spent waiting for input.", ["processor"])
BLOCKED = Counter("sowstream_blocked_seconds_total", "Time that transaction calls took.", ["processor", "call"])
TASK_STATE = Gauge("sowstream_task_state", "1 for the state a partition is in.", ["processor", "partition", "state"])
ASSIGNED = Gauge("sowstream_partition_assigned_timestamp_seconds", "When a partition was assigned.", _PARTITION)
PARTITIONS = Gauge("sowstream_topic_partitions", "Partitions of the input topic, owned or not.", ["processor"])
RESTORE_REMAINING = Gauge("sowstream_restore_remaining_records", "SOW offsets still to be restored.", _PARTITION)
RESTORED = Counter("sowstream_restored_records_total", "Records read back from SOW and mark topics.", ["processor"])
PARTITION_LAG = Gauge(
    "sowstream_partition_lag_records", "Input offsets still to be processed, in any state.", _PARTITION
)
LAG = Gauge("sowstream_consumer_lag_records", "The same while a partition runs; goes with 0.2.", _PARTITION)
DLQ_WAITING = Gauge("sowstream_dlq_waiting_records", "Dead letters that were not sent back.", _PARTITION)
ROOM = Gauge(
    "sowstream_input_room_seconds",
    "Time until Kafka may delete or compact what is to be processed next.",
    _PARTITION,
)
STANDBY_LAG = Gauge("sowstream_standby_lag_records", "SOW offsets a standby is behind.", _PARTITION)
TAKEOVERS = Counter("sowstream_takeovers_total", "Partitions assigned, by what they begin with.", ["processor", "how"])
STATE_OPENED = Counter(
    "sowstream_state_opened_total", "Local states opened, by what the directory held.", ["processor", "how"]
)
STATE_WIPED = Counter("sowstream_state_wiped_total", "Local states wiped to be restored.", ["processor", "reason"])
STATE_BYTES = Gauge(
    "sowstream_state_bytes", "What local states take in memory and on disk.", ["processor", "partition", "kind"]
)
PIPELINE_STATE = Gauge("sowstream_pipeline_state", "1 for the state a pipeline is in.", ["processor", "state"])
HELD = Gauge("sowstream_held_partitions", "Partitions that are held, by why.", ["processor", "reason"])
KAFKA_UNREACHABLE = Gauge(
    "sowstream_kafka_unreachable_seconds", "Seconds since a broker was last reached; 0 while one is."
)
KAFKA_UNREACHABLE.set_function(outage.seconds)
BUILD_INFO = Gauge("sowstream_build_info", "1, with the versions.", ["version", "python", "librdkafka"])
STATE_DISK_FREE = Gauge("sowstream_state_disk_free_bytes", "Room on the disk of the local states.")
BLOCK_CACHE = Gauge("sowstream_block_cache_bytes", "The memory all local states of a process share.", ["kind"])

STATE_DIRECTORIES = Gauge(
    "sowstream_state_directories", "Directories of local states on this disk, by use.", ["processor", "kind"]
)
STATE_REMOVED = Counter(
    "sowstream_state_removed_total", "Directories removed that the worker no longer needed.", ["processor", "reason"]
)


def show_process(version: str, state_dir: Path) -> None:
    """Show the versions of this process, and from now on the room on the disk of its states.

    Args:
        version: the version of this package.
        state_dir: a directory on that disk, which may not exist yet.
    """
    BUILD_INFO.labels(version, platform.python_version(), librdkafka_version()).set(1)

    def free() -> float:
        try:
            return shutil.disk_usage(state_dir).free
        except OSError:
            return math.nan  # An error would cost the page all other metrics.

    STATE_DISK_FREE.set_function(free)


class _Series:
    """The series of a gauge with one processor's label, by the other labels: those not shown any more are removed."""

    def __init__(self, gauge: Gauge, processor: str) -> None:
        self._gauge, self._processor = gauge, processor
        self._shown: dict[tuple[int | str, ...], float] = {}

    def show(self, values: dict[tuple[int | str, ...], float]) -> None:
        """Set the series with these labels, and remove all others."""
        for labels in self._shown.keys() - values.keys():
            self._gauge.remove(self._processor, *labels)
        for labels, value in values.items():
            if self._shown.get(labels) != value:
                self._gauge.labels(self._processor, *labels).set(value)
        self._shown = values


class ThreadMetrics:
    """The metrics of one thread, labelled with its processor."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        self._consumed = CONSUMED.labels(processor)
        self._emitted: dict[str, tuple[Counter, Counter]] = {}  # Records and bytes, by output.
        self._commits = COMMITS.labels(processor)
        self._worked, self._waited = WORKED.labels(processor), WAITED.labels(processor)
        self._last_commit = LAST_COMMIT.labels(processor)
        self._committed_s = 0.0  # By the wall clock.
        self._shown: set[int] = set()  # Partitions whose states are shown.
        self._states, self._state_bytes = _Series(TASK_STATE, processor), _Series(STATE_BYTES, processor)
        self._letters, self._gauges = _Series(DLQ_WAITING, processor), _Series(GAUGES, processor)
        self._own_gauges = {name: _Series(gauge, processor) for name, gauge in _OWN_GAUGES.items()}
        self._held_for: set[str] = set()  # Reasons shown so far.

    def consumed(self, count: int) -> None:
        """Count processed records."""
        self._consumed.inc(count)

    def emitted(self, role: str, count: int, size: int) -> None:
        """Count records that were sent to an output, and the bytes of their values."""
        counters = self._emitted.get(role)
        if counters is None:
            labels = self._processor, role
            counters = self._emitted[role] = EMITTED.labels(*labels), EMITTED_BYTES.labels(*labels)
        counters[0].inc(count)
        counters[1].inc(size)

    def loop(self, waited_s: float, worked_s: float) -> None:
        """Add the times of one turn of the loop."""
        self._waited.inc(waited_s)
        self._worked.inc(worked_s)

    def committed(self, seconds: float) -> None:
        """Observe the duration of a commit, which has just ended."""
        self._commits.observe(seconds)
        self._committed_s = time.time()
        self._last_commit.set(self._committed_s)

    def partitions(self, count: int) -> None:
        """Show the number of partitions of the input topic."""
        PARTITIONS.labels(self._processor).set(count)

    def counts(self, counts: Counts) -> None:
        """Add the events that a processor counted in the transaction that was committed last."""
        for event, count in counts.events.items():
            EVENTS.labels(self._processor, event).inc(count)
        for reason, count in counts.rejected.items():
            REJECTED.labels(self._processor, reason).inc(count)
        for name, timing in counts.observed.items():
            OBSERVED.add(timing, self._processor, name)
            if name in _OWN_TIMINGS:
                _OWN_TIMINGS[name].add(timing, self._processor)
        if counts.taken:
            # The age of the first record of each batch stands for all of it.
            ages = [(self._committed_s - timestamp_ms / 1000, count) for timestamp_ms, count in counts.taken]
            END_TO_END.observe(ages, self._processor)

    def gauges(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """Show the gauges of each partition's processor, and remove those that are no longer set."""
        self._gauges.show(
            {(partition, name): value for partition, set_ in values.items() for name, value in set_.items()}
        )
        for name, series in self._own_gauges.items():
            series.show({(partition,): gauges[name] for partition, gauges in values.items() if name in gauges})

    def aborted(self, cause: str) -> None:
        """Count a transaction that was rolled back."""
        ABORTED.labels(self._processor, cause).inc()

    def rebalanced(self, kind: str, states: Mapping[int, TaskState]) -> None:
        """Count a change of the assignment, and show the states after it."""
        REBALANCES.labels(self._processor, kind).inc()
        self.states(states, {})

    def states(self, states: Mapping[int, TaskState], remaining: Mapping[int, int]) -> None:
        """Show the states of the partitions, and remove those of partitions that have left."""
        self._states.show({(partition, state.value): 1 for partition, state in states.items()})
        # Their new owner shows them now; an old lag that stayed here would raise alarms for ever.
        for partition in self._shown - states.keys():
            for gauge in (ASSIGNED, RESTORE_REMAINING, PARTITION_LAG, LAG, ROOM):
                gauge.remove(self._processor, partition)
        for partition in states.keys() - self._shown:
            ASSIGNED.labels(self._processor, partition).set_to_current_time()
        self._shown = set(states)
        for partition in states:
            RESTORE_REMAINING.labels(self._processor, partition).set(remaining.get(partition, 0))

    def state_bytes(self, usage: Mapping[int, Mapping[str, int]]) -> None:
        """Show the size of each partition's state, and remove those of partitions that have left."""
        self._state_bytes.show(
            {(partition, kind): size for partition, kinds in usage.items() for kind, size in kinds.items()}
        )

    def lag(self, running: Mapping[int, int], others: Mapping[int, int]) -> None:
        """Show how far each partition is behind its input: those that run, and all others."""
        for partition, lag in running.items():
            LAG.labels(self._processor, partition).set(lag)
        for partition, lag in {**others, **running}.items():
            PARTITION_LAG.labels(self._processor, partition).set(lag)

    def dead_letters(self, counts: Mapping[int, int]) -> None:
        """Show how many dead letters of each partition wait, and remove those of partitions that have left."""
        self._letters.show({(partition,): count for partition, count in counts.items()})

    def held(self, reasons: Mapping[str, int]) -> None:
        """Show the number of held partitions for each reason, 0 for reasons of the past."""
        for reason in self._held_for - reasons.keys():
            HELD.labels(self._processor, reason).set(0)
        self._held_for |= reasons.keys()
        for reason, count in reasons.items():
            HELD.labels(self._processor, reason).set(count)

    def room(self, rooms_s: Mapping[int, float]) -> None:
        """Show how long Kafka keeps the next record of each partition."""
        for partition, room_s in rooms_s.items():
            ROOM.labels(self._processor, partition).set(room_s)


class StandbyMetrics:
    """The metrics of one processor's standbys."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        self._lags = _Series(STANDBY_LAG, processor)

    def took_over(self, how: str) -> None:
        """Count an assigned partition, by its first state: a standby's, the one on disk, or an empty one."""
        TAKEOVERS.labels(self._processor, how).inc()

    def lags(self, lags: Mapping[int, int]) -> None:
        """Show how far each standby is behind the SOW topic, and remove former standbys."""
        self._lags.show({(partition,): lag for partition, lag in lags.items()})
