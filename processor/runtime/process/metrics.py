"""All metrics of a worker in one table; threads update them once per batch, never per record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from processor.hosting.timing_metrics import Timings
from processor.kafka import outage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.runtime.task import Counts
    from processor.runtime.task_state import TaskState

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

CONSUMED = Counter("sowstream_records_consumed_total", "Input records given to a processor.", ["processor"])
EMITTED = Counter("sowstream_records_emitted_total", "Records forwarded to an output.", ["processor", "output"])
EMITTED_BYTES = Counter("sowstream_emitted_bytes_total", "Bytes of their values.", ["processor", "output"])
REJECTED = Counter("sowstream_records_rejected_total", "Input records sent to the DLQ.", ["processor", "reason"])
EVENTS = Counter("sowstream_events_total", "What a processor counts itself.", ["processor", "event"])
_READY = "view_ready"  # The gauge by which a stage of a view says so.
GAUGES = Gauge("sowstream_gauge", "What a processor says of itself now.", ["processor", "partition", "gauge"])
VIEW_READY = Gauge(
    "sowstream_view_ready", "1 when a stage of a view has caught up with its input.", ["processor", "partition"]
)
OBSERVED = Timings(
    "sowstream_observed_seconds", "How long things took that a processor observed.", ("processor", "timing")
)
REGISTRY.register(OBSERVED)
COMMITS = Histogram(
    "sowstream_commit_seconds", "How long transactions took to commit.", ["processor"], buckets=_SECONDS
)
ABORTED = Counter("sowstream_transactions_aborted_total", "Transactions rolled back.", ["processor", "cause"])
REBALANCES = Counter("sowstream_rebalances_total", "Changes of the assignment.", ["processor", "kind"])
WORKED = Counter("sowstream_worked_seconds_total", "Time spent processing.", ["processor"])
WAITED = Counter("sowstream_waited_seconds_total", "Time spent waiting for input.", ["processor"])
BLOCKED = Counter("sowstream_blocked_seconds_total", "Time that transaction calls took.", ["processor", "call"])
TASK_STATE = Gauge("sowstream_task_state", "1 for the state a partition is in.", ["processor", "partition", "state"])
RESTORE_REMAINING = Gauge(
    "sowstream_restore_remaining_records", "SOW offsets still to be restored.", ["processor", "partition"]
)
RESTORED = Counter("sowstream_restored_records_total", "Records read back from SOW and mark topics.", ["processor"])
LAG = Gauge("sowstream_consumer_lag_records", "Input offsets still to be processed.", ["processor", "partition"])
ROOM = Gauge(
    "sowstream_input_room_seconds",
    "Time until Kafka may delete or compact what is to be processed next.",
    ["processor", "partition"],
)
STANDBY_LAG = Gauge("sowstream_standby_lag_records", "SOW offsets a standby is behind.", ["processor", "partition"])
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
BLOCK_CACHE = Gauge("sowstream_block_cache_bytes", "The memory all local states of a process share.", ["kind"])

STATE_DIRECTORIES = Gauge(
    "sowstream_state_directories", "Directories of local states on this disk, by use.", ["processor", "kind"]
)
STATE_REMOVED = Counter(
    "sowstream_state_removed_total", "Directories removed that the worker no longer needed.", ["processor", "reason"]
)


class ThreadMetrics:
    """The metrics of one thread, labelled with its processor."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        self._consumed = CONSUMED.labels(processor)
        self._commits = COMMITS.labels(processor)
        self._worked, self._waited = WORKED.labels(processor), WAITED.labels(processor)
        self._shown: set[tuple[int, str]] = set()
        self._sized: set[tuple[int, str]] = set()
        self._gauged: set[tuple[int, str]] = set()
        self._held_for: set[str] = set()  # Reasons shown so far.

    def consumed(self, count: int) -> None:
        """Count processed records."""
        self._consumed.inc(count)

    def emitted(self, role: str, count: int, size: int) -> None:
        """Count records that were sent to an output, and the bytes of their values."""
        EMITTED.labels(self._processor, role).inc(count)
        EMITTED_BYTES.labels(self._processor, role).inc(size)

    def loop(self, waited_s: float, worked_s: float) -> None:
        """Add the times of one turn of the loop."""
        self._waited.inc(waited_s)
        self._worked.inc(worked_s)

    def committed(self, seconds: float) -> None:
        """Observe the duration of a commit."""
        self._commits.observe(seconds)

    def counts(self, counts: Counts) -> None:
        """Add the events that a processor counted in a committed transaction."""
        for event, count in counts.events.items():
            EVENTS.labels(self._processor, event).inc(count)
        for reason, count in counts.rejected.items():
            REJECTED.labels(self._processor, reason).inc(count)
        if counts.observed:
            OBSERVED.add(self._processor, counts.observed)

    def gauges(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """Show the gauges of each partition's processor, and remove those that are no longer set."""
        now = {(partition, gauge) for partition, gauges in values.items() for gauge in gauges}
        for partition, gauge in self._gauged - now:
            GAUGES.remove(self._processor, partition, gauge)
            if gauge == _READY:
                VIEW_READY.remove(self._processor, partition)
        for partition, gauges in values.items():
            for gauge, value in gauges.items():
                GAUGES.labels(self._processor, partition, gauge).set(value)
            if _READY in gauges:
                VIEW_READY.labels(self._processor, partition).set(gauges[_READY])
        self._gauged = now

    def aborted(self, cause: str) -> None:
        """Count a transaction that was rolled back."""
        ABORTED.labels(self._processor, cause).inc()

    def rebalanced(self, kind: str, states: Mapping[int, TaskState]) -> None:
        """Count a change of the assignment, and show the states after it."""
        REBALANCES.labels(self._processor, kind).inc()
        self.states(states, {})

    def states(self, states: Mapping[int, TaskState], remaining: Mapping[int, int]) -> None:
        """Show the states of the partitions, and remove those of partitions that have left."""
        now = {(partition, state.value) for partition, state in states.items()}
        for partition, state in self._shown - now:
            TASK_STATE.remove(self._processor, partition, state)
        # Their new owner shows them now; an old lag that stayed here would raise alarms for ever.
        for partition in {partition for partition, _ in self._shown} - set(states):
            for gauge in (RESTORE_REMAINING, LAG, ROOM):
                gauge.remove(self._processor, partition)
        for partition, state in now - self._shown:
            TASK_STATE.labels(self._processor, partition, state).set(1)
        self._shown = now
        for partition in states:
            RESTORE_REMAINING.labels(self._processor, partition).set(remaining.get(partition, 0))

    def state_bytes(self, usage: Mapping[int, Mapping[str, int]]) -> None:
        """Show the size of each partition's state, and remove those of partitions that have left."""
        now = {(partition, kind) for partition, kinds in usage.items() for kind in kinds}
        for partition, kind in self._sized - now:
            STATE_BYTES.remove(self._processor, partition, kind)
        for partition, kinds in usage.items():
            for kind, size in kinds.items():
                STATE_BYTES.labels(self._processor, partition, kind).set(size)
        self._sized = now

    def lag(self, lags: Mapping[int, int]) -> None:
        """Show how far each partition is behind its input."""
        for partition, lag in lags.items():
            LAG.labels(self._processor, partition).set(lag)

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
        self._shown: set[int] = set()

    def took_over(self, how: str) -> None:
        """Count an assigned partition, by its first state: a standby's, the one on disk, or an empty one."""
        TAKEOVERS.labels(self._processor, how).inc()

    def lags(self, lags: Mapping[int, int]) -> None:
        """Show how far each standby is behind the SOW topic, and remove former standbys."""
        for partition in self._shown - lags.keys():
            STANDBY_LAG.remove(self._processor, partition)
        self._shown = set(lags)
        for partition, lag in lags.items():
            STANDBY_LAG.labels(self._processor, partition).set(lag)
