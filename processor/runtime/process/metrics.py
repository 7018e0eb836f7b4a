"""Every metric of a worker, in one table; threads add to them a batch at a time, never per record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from processor.hosting.timings import Timings
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
GAUGES = Gauge("sowstream_gauge", "What a processor says of itself now.", ["processor", "partition", "gauge"])
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
    """One thread's share: the same metrics, labelled with its processor."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        self._consumed = CONSUMED.labels(processor)
        self._commits = COMMITS.labels(processor)
        self._worked, self._waited = WORKED.labels(processor), WAITED.labels(processor)
        self._shown: set[tuple[int, str]] = set()
        self._sized: set[tuple[int, str]] = set()
        self._gauged: set[tuple[int, str]] = set()
        self._held_for: set[str] = set()  # Reasons that have been told.

    def consumed(self, count: int) -> None:
        """Records were processed."""
        self._consumed.inc(count)

    def emitted(self, role: str, count: int, size: int) -> None:
        """Records were sent to an output: how many, and the bytes of their values."""
        EMITTED.labels(self._processor, role).inc(count)
        EMITTED_BYTES.labels(self._processor, role).inc(size)

    def loop(self, waited_s: float, worked_s: float) -> None:
        """The loop turned once."""
        self._waited.inc(waited_s)
        self._worked.inc(worked_s)

    def committed(self, seconds: float) -> None:
        """A transaction was committed."""
        self._commits.observe(seconds)

    def counts(self, counts: Counts) -> None:
        """What a processor counted in a committed transaction."""
        for event, count in counts.events.items():
            EVENTS.labels(self._processor, event).inc(count)
        for reason, count in counts.rejected.items():
            REJECTED.labels(self._processor, reason).inc(count)
        if counts.observed:
            OBSERVED.add(self._processor, counts.observed)

    def gauges(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """What each partition's processor says of itself now; what none says any more is shown no more."""
        now = {(partition, gauge) for partition, gauges in values.items() for gauge in gauges}
        for partition, gauge in self._gauged - now:
            GAUGES.remove(self._processor, partition, gauge)
        for partition, gauges in values.items():
            for gauge, value in gauges.items():
                GAUGES.labels(self._processor, partition, gauge).set(value)
        self._gauged = now

    def aborted(self, cause: str) -> None:
        """A transaction was rolled back."""
        ABORTED.labels(self._processor, cause).inc()

    def rebalanced(self, kind: str, states: Mapping[int, TaskState]) -> None:
        """The assignment changed."""
        REBALANCES.labels(self._processor, kind).inc()
        self.states(states, {})

    def states(self, states: Mapping[int, TaskState], remaining: Mapping[int, int]) -> None:
        """The partitions' states now; partitions that left are shown no more."""
        now = {(partition, state.value) for partition, state in states.items()}
        for partition, state in self._shown - now:
            TASK_STATE.remove(self._processor, partition, state)
        # Another process shows what has become of them; an old lag beside it would alarm for ever.
        for partition in {partition for partition, _ in self._shown} - set(states):
            for gauge in (RESTORE_REMAINING, LAG, ROOM):
                gauge.remove(self._processor, partition)
        for partition, state in now - self._shown:
            TASK_STATE.labels(self._processor, partition, state).set(1)
        self._shown = now
        for partition in states:
            RESTORE_REMAINING.labels(self._processor, partition).set(remaining.get(partition, 0))

    def state_bytes(self, usage: Mapping[int, Mapping[str, int]]) -> None:
        """What each partition's state takes; partitions that left are shown no more."""
        now = {(partition, kind) for partition, kinds in usage.items() for kind in kinds}
        for partition, kind in self._sized - now:
            STATE_BYTES.remove(self._processor, partition, kind)
        for partition, kinds in usage.items():
            for kind, size in kinds.items():
                STATE_BYTES.labels(self._processor, partition, kind).set(size)
        self._sized = now

    def lag(self, lags: Mapping[int, int]) -> None:
        """How far each partition is behind its input."""
        for partition, lag in lags.items():
            LAG.labels(self._processor, partition).set(lag)

    def held(self, reasons: Mapping[str, int]) -> None:
        """How many partitions are held for each reason; of one that no partition has any more there are none."""
        for reason in self._held_for - reasons.keys():
            HELD.labels(self._processor, reason).set(0)
        self._held_for |= reasons.keys()
        for reason, count in reasons.items():
            HELD.labels(self._processor, reason).set(count)

    def room(self, rooms_s: Mapping[int, float]) -> None:
        """How long Kafka keeps what each partition has to process next."""
        for partition, room_s in rooms_s.items():
            ROOM.labels(self._processor, partition).set(room_s)


class StandbyMetrics:
    """What the standbys of one processor tell."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        self._shown: set[int] = set()

    def took_over(self, how: str) -> None:
        """A partition was assigned and begins with a standby's state, with what was on disk, or with nothing."""
        TAKEOVERS.labels(self._processor, how).inc()

    def lags(self, lags: Mapping[int, int]) -> None:
        """How far each standby is behind the SOW topic; those that are none any more are shown no more."""
        for partition in self._shown - lags.keys():
            STANDBY_LAG.remove(self._processor, partition)
        self._shown = set(lags)
        for partition, lag in lags.items():
            STANDBY_LAG.labels(self._processor, partition).set(lag)
