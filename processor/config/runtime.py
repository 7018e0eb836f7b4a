"""The section `runtime`: how workers run, and all their limits."""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from processor.config.section import IntervalS, Section

_STUCK_S: Final = 120.0
# Every call to Kafka within a turn of the loop may take the transaction timeout, and an abort follows a commit.
_CALL_STUCK_S: Final = 20.0
_TRANSACTIONS_IN_A_TURN: Final = 3


class RuntimeConfig(Section):
    """Settings of the running of workers: `runtime`."""

    commit_interval_s: IntervalS = Field(default=0.2, gt=0)
    """Longest time between two commits while records flow; an idle worker commits at once."""
    commit_records_max: int = Field(default=100_000, ge=1)
    """Most input records in one transaction."""
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
    write_back_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Committed records that may wait in memory before they are in RocksDB, for all partitions of a processor; writing
    starts at three quarters of it.
    """
    write_back_interval_s: IntervalS = Field(default=10.0, gt=0)
    """Longest time before writing starts: the part of the SOW topic that a killed worker has to read again."""
    block_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """RocksDB's block cache and write buffers, shared by all partitions of a process."""
    restore_stall_timeout_s: IntervalS = Field(default=120.0, gt=0)
    """A partition whose restore gets no record for this long, while Kafka answers other requests, is held with the
    reason, and retried.
    """
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
    state_cleanup_delay_s: IntervalS = Field(default=600.0, gt=0)
    """A partition's directory that this worker has not used for this long, while another one has the partition, is
    removed; where room is short, at once."""
    prefetch_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Input that a process may hold in memory before it is processed, shared by the consumers of its pipelines."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve `/metrics` for Prometheus, and `/livez`, `/readyz` and `/status`, here; the processes of one `state_dir` on
    consecutive ports. None: nowhere.
    """
    metrics_host: str = ""
    """The address of that port, such as 127.0.0.1; empty: every address, of IPv6 too."""

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
