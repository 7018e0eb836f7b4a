"""The sections `runtime` and `telemetry` of a process, and the properties of `kafka` that contradict the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field, model_validator

from processor.config.section import IntervalS, Section

if TYPE_CHECKING:
    from collections.abc import Mapping


_STUCK_S: Final = 120.0
# Every call to Kafka within a turn of the loop may take the transaction timeout, and an abort follows a commit.
_CALL_STUCK_S: Final = 20.0
_TRANSACTIONS_IN_A_TURN: Final = 3


class InternalConfig(Section):
    """Sizes and times that tests and drills turn: `runtime.internal`, which may change with every release."""

    commit_records_max: int = Field(default=100_000, ge=1)
    """Most input records in one transaction."""
    write_back_interval_s: IntervalS = Field(default=10.0, gt=0)
    """Longest time before writing to RocksDB starts: the part of the SOW topic that a killed worker reads again."""
    restore_stall_timeout_s: IntervalS = Field(default=120.0, gt=0)
    """A partition whose restore gets no record for this long, while Kafka answers other requests, is held with the
    reason, and retried.
    """
    state_cleanup_delay_s: IntervalS = Field(default=600.0, gt=0)
    """A partition's directory that this worker has not used for this long, while another one has the partition, is
    removed; where room is short, at once."""


class RuntimeConfig(Section):
    """Settings of the running of workers: `runtime`."""

    commit_interval_s: IntervalS = Field(default=0.2, gt=0)
    """Longest time between two commits while records flow; an idle worker commits at once."""
    batch_records_max: int = Field(default=5_000, ge=1)
    """Most records passed to a processor at once."""
    batch_bytes_max: int = Field(default=16 * 1024 * 1024, ge=64 * 1024)
    """Outputs that may wait in memory to be sent, for each partition: a processor with as much output gets its next
    records when it is sent. A transaction is committed when it has twice as much.
    """
    transaction_timeout_s: IntervalS = Field(default=10.0, ge=1, le=900)
    """The broker aborts a dead worker's transaction after this; readers of the topics wait for it that long."""
    session_timeout_s: IntervalS = Field(default=20.0, ge=1)
    """A worker that is silent for this long loses its partitions; more than Kafka takes to give up a broker that died
    (9 s, `broker.session.timeout.ms`). With `kafka.group.protocol` `consumer` the brokers set the time.
    """
    shutdown_timeout_s: IntervalS = Field(default=20.0, ge=1)
    """A stop that takes longer than this is forced; Kafka then rolls the open transaction back."""
    write_back_bytes: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Committed records that may wait in memory before they are in RocksDB, shared by the processors of a process;
    writing starts at three quarters of it. So many written records stay in memory besides.
    """
    block_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """RocksDB's block cache and write buffers, shared by all partitions of a process."""
    stuck_timeout_s: IntervalS | None = Field(default=None, ge=10)
    """A thread that has not finished a turn for this long counts as stuck: the process logs its place, and ends. None:
    two minutes, or three times `transaction_timeout_s` if that is more; and for a call of a processor 20 seconds, or
    twice `transaction_timeout_s`: its partition is held at that record then.
    """
    static_membership: bool = False
    """Keep a stopped worker's partitions for it until `session_timeout_s` is over: a restart within that time moves
    nothing, and the partitions of a worker that does not come back stop for as long.
    """
    standby_replicas: int = Field(default=0, ge=0, le=8)
    """Number of other workers that keep a copy of each partition's state, so that a takeover needs no restore."""
    prefetch_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Input that a process may hold in memory before it is processed, shared by the consumers of its pipelines."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve `/metrics` for Prometheus, and `/livez`, `/readyz` and `/status`, here; the processes of one `state_dir` on
    consecutive ports. None: nowhere.
    """
    metrics_host: str = ""
    """The address of that port, such as 127.0.0.1; empty: every address, of IPv6 too."""
    internal: InternalConfig = Field(default_factory=InternalConfig)
    """What tests and drills turn."""

    @property
    def stuck_after_s(self) -> float:
        """`stuck_timeout_s`, or its default."""
        return self.stuck_timeout_s or max(_STUCK_S, self.transaction_timeout_s * _TRANSACTIONS_IN_A_TURN)

    @property
    def call_stuck_after_s(self) -> float:
        """Time after which a call of a processor counts as stuck: `stuck_timeout_s`, or twice the transaction's."""
        return self.stuck_timeout_s or max(_CALL_STUCK_S, 2 * self.transaction_timeout_s)

    @model_validator(mode="after")
    def _commit_within_transaction(self) -> RuntimeConfig:
        if self.commit_interval_s * 2 > self.transaction_timeout_s:
            raise ValueError("commit_interval_s must be at most half of transaction_timeout_s")
        if self.stuck_after_s < self.transaction_timeout_s * _TRANSACTIONS_IN_A_TURN:
            raise ValueError("stuck_timeout_s must be at least three times transaction_timeout_s")
        return self


_ELSEWHERE = {
    "transaction.timeout.ms": "runtime.transaction_timeout_s",
    "transactional.id": "application_id, which transactional ids begin with",
    "group.instance.id": "runtime.static_membership, which gives each worker one of its own",
    "group.id": "application_id, which consumer groups begin with",
}
"""Properties that would be the same for every client of a process, or that settings of ours already determine."""

_CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms")


def check_kafka(kafka: Mapping[str, str], runtime: RuntimeConfig) -> None:
    """Refuse properties that conflict with the settings.

    Raises:
        ValueError: with the property and the remedy.
    """
    for name, instead in _ELSEWHERE.items():
        if name in kafka:
            raise ValueError(f"{name} is not to be set here; set {instead}")
    numbers_ms = {
        name: _milliseconds(kafka, name) for name in (*_CLASSIC_ONLY, "max.poll.interval.ms", "message.timeout.ms")
    }
    if kafka.get("group.protocol", "classic").lower() == "consumer":
        for name in _CLASSIC_ONLY:
            if name in kafka:
                raise ValueError(f"{name} is the brokers' to say with group.protocol consumer; remove it")
    session_ms = runtime.session_timeout_s * 1000
    if numbers_ms["session.timeout.ms"] not in (None, session_ms):
        raise ValueError("session.timeout.ms is not what runtime.session_timeout_s says; set the latter alone")
    if (heartbeat_ms := numbers_ms["heartbeat.interval.ms"]) is not None and heartbeat_ms * 2 > session_ms:
        raise ValueError("heartbeat.interval.ms must be at most half of runtime.session_timeout_s")
    _check_poll_interval(numbers_ms["max.poll.interval.ms"], runtime)


def _check_poll_interval(interval_ms: int | None, runtime: RuntimeConfig) -> None:
    """Check the poll interval: a turn may wait a transaction's time each for offsets, commit and abort."""
    if interval_ms is None:
        return
    if interval_ms < runtime.session_timeout_s * 1000:
        raise ValueError("max.poll.interval.ms must be at least runtime.session_timeout_s")
    if interval_ms < runtime.transaction_timeout_s * 3000:
        raise ValueError("max.poll.interval.ms must be at least three times runtime.transaction_timeout_s")


def _milliseconds(kafka: Mapping[str, str], name: str) -> int | None:
    if name not in kafka:
        return None
    try:
        return int(kafka[name])
    except ValueError:
        raise ValueError(f"{name}: {kafka[name]!r} is not a number of milliseconds") from None


class TelemetryConfig(Section):
    """Spans and metrics sent to an OpenTelemetry collector, by OTLP over HTTP. `OTEL_*` variables set the rest."""

    traces: bool = False
    """Send spans of publishes, merged batches, deliveries and acks, linked by header `traceparent`."""
    metrics: bool = False
    """Send the metrics that `runtime.metrics_port` serves."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^@\s]+$")
    """The collector, such as http://HOST:4318; credentials go into OTEL_EXPORTER_OTLP_HEADERS. None:
    OTEL_EXPORTER_OTLP_ENDPOINT, or else this machine.
    """
