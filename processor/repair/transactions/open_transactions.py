"""Finds transactions that stand open in the topics of a family, their owners, and the way they must end.

::

    coordinator                       partition                     here
    PrepareCommit, later another …    records, no marker            commit: the input offsets are committed
    PrepareAbort, later another …     records, no marker            abort: the worker did it again
    Ongoing, or about to end it       records                       refuse: Kafka ends it
    nothing about these records       records, no marker            refuse: the outcome is unknown

The coordinator's decision comes from its own log. Its answer to a request is not enough: it is about the last
transaction of a transactional id only, and a worker that came back has had others since.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.errors import Stop
from processor.installation.acls import GROUP_OFFSETS, TRANSACTION_STATE
from processor.installation.configured_pipelines import pipeline_of, specs
from processor.repair.transactions.transaction_admin import CoordinatorState, Marker, OpenProducer
from processor.repair.transactions.transaction_log import (
    OpenRange,
    decisions_of,
    open_ranges,
    partition_of,
    read_uncommitted,
)
from processor.wire import record_headers
from processor.wire.record_headers import kind_of_update
from processor.wire.subscriber_headers import read_delta_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.config import Config
    from processor.kafka.admin.connection import Cluster
    from processor.kafka.message import Message
    from processor.record import Headers
    from processor.repair.transactions.transaction_admin import TransactionAdmin
    from processor.repair.transactions.transaction_log import Decision


def version_of(message: Message) -> int:
    """The version of a SOW or delta record; 0 for the record of a delete."""
    headers = cast("Headers", list(message.headers() or ()))
    if message.value() is None or kind_of_update(headers) in ("delete", "expire"):
        return 0
    return record_headers.version_of(headers) or 0


def base_of(message: Message) -> int:
    """The version that a delta applies to; 0 is none."""
    headers = cast("Headers", list(message.headers() or ()))
    base = read_delta_headers(headers).base
    return -1 if base is None else base


def are_done_once(messages: Iterable[Message]) -> bool:
    """Return whether no update among the records of a partition was repeated.

    A worker whose transaction is rolled back merges the same input again. So if the first part of the records was
    rolled back, versions appear twice.
    """
    last: dict[bytes, int] = {}
    for message in messages:
        key, version = message.key() or b"", version_of(message)
        before = last.get(key)
        if before is not None and (version == before == 0 or 0 < version <= before):
            return False
        last[key] = version
    return True


CLOCKS_MS: Final = 5_000
"""Largest difference between the clocks of a producer and of the brokers. A decision that is older than the first open
record by more than this was about another transaction; a clock that is further ahead leads to a refusal, never to a
wrong end.
"""


class Verdict(NamedTuple):
    """The decision for a transaction in one partition."""

    marker: Marker | None
    """The record that ends it; None: it must not be touched."""
    why: str
    """The reason, and the remedy if it must not be touched: a clause for people."""
    needs_idle: bool = False
    """True if it may be ended only while its producer does not run: no later incarnation has fenced it."""


def decide(
    open_range: OpenRange,
    producer: OpenProducer,
    state: CoordinatorState | None,
    decisions: Iterable[Decision],
    *,
    are_done_once: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Decide how an open transaction must end.

    Args:
        open_range: the records after the partition's last stable offset.
        producer: the owner of the transaction, as the partition's leader knows it.
        state: the coordinator's present state of the transactional id; None: no coordinator knows the producer.
        decisions: the decisions about the transactional id in the coordinator's log.
        are_done_once: whether it is certain that none of the open records was rolled back and repeated; called if an
            abort came shortly before the last decision, as it may have been about the first of the records.
    """
    place = open_range.topic, open_range.partition
    if state is None:
        return Verdict(
            None,
            "no coordinator knows its producer any more, so whether it was committed is not known; compare the group's "
            "position with the input before you end it with Kafka's kafka-transactions",
        )
    if place in state.places:
        return Verdict(None, _still_open(state))
    if state.producer_id != producer.producer_id or state.epoch < producer.epoch:
        return Verdict(
            None,
            f"the coordinator knows its transactional id as producer {state.producer_id}, epoch {state.epoch}: "
            "another one than wrote here; nothing is known of its end",
        )
    since_ms = open_range.since_ms if open_range.begin == producer.begin else producer.last_ms
    about_it = [
        decision
        for decision in decisions
        if decision.producer_id == producer.producer_id
        and decision.epoch == producer.epoch
        and place in decision.places
        and decision.decided_ms >= since_ms - CLOCKS_MS
    ]
    if not about_it:
        return Verdict(
            None,
            "the coordinator's log has no decision about it: it was never decided, or is too long ago; nothing is "
            "known of its end",
        )
    if len({decision.is_commit for decision in about_it}) > 1 and not are_done_once():
        return Verdict(
            None,
            "the coordinator's log has a commit and an abort that may both be about it; nothing is known of its end",
        )
    last = about_it[-1]
    marker = Marker(
        *place,
        producer.producer_id,
        last.marker_epoch,
        max(0, producer.coordinator_epoch),
        last.transaction_version,
        last.is_commit,
    )
    word = "committed" if last.is_commit else "rolled back"
    return Verdict(
        marker, f"the coordinator's log says that it was {word}", needs_idle=state.epoch <= last.marker_epoch
    )


def _still_open(state: CoordinatorState) -> str:
    if state.state == "Ongoing":
        return (
            "its transactional id has a transaction open that this partition belongs to; Kafka ends it within "
            f"{state.timeout_ms / 1000:g} s of its beginning: look again then"
        )
    return (
        f"its coordinator is about to end it ({state.state}); look again in a minute. If it stays so, restart the "
        "broker that has the transactional id's partition of __transaction_state"
    )


_MARGIN_S: Final = 5.0  # Brokers look for expired transactions every few seconds.
_HISTORY_MS: Final = 600_000  # A transaction may have begun so long before its first record here.


class OpenTransaction(NamedTuple):
    """One transaction that stands open in one partition."""

    name: str
    """The family: a topic of the settings."""
    open_range: OpenRange
    """The records that the partition's readers of committed records wait for."""
    producer: OpenProducer
    """The owner, as the partition's leader knows it."""
    transactional_id: str | None
    """The owner's transactional id; None: no coordinator knows it."""
    state: CoordinatorState | None
    """The coordinator's present state of it; None: no coordinator knows it."""
    verdict: Verdict
    """The decision about its end."""

    @property
    def age_s(self) -> float:
        """The time for which the partition's readers have waited, in seconds."""
        return _age_s(self.open_range)


def standing(config: Config, cluster: Cluster, names: Iterable[str] = ()) -> dict[str, list[OpenRange]]:
    """The partitions in which a transaction has been open for longer than one may take, by family.

    The open transactions of running workers are younger. This needs no more rights than reading.

    Args:
        config: the settings.
        cluster: the topics that exist.
        names: topics of the settings; none: all.

    Raises:
        ConfigurationError: there is no such topic, or Kafka refuses.
        BrokerUnavailable: no answer in time.
    """
    families = list(names) or [*config.names]
    return {name: _standing(config, cluster, name) for name in families}


def examine(
    config: Config, cluster: Cluster, transactions: TransactionAdmin, ranges: Iterable[OpenRange], name: str
) -> list[OpenTransaction]:
    """The owners of the transactions that stand open in these partitions, and how each must end.

    Args:
        config: the settings.
        cluster: the topics that exist.
        transactions: answers requests about transactions.
        ranges: open ranges of one family, or of the offsets of its group.
        name: the family.

    Raises:
        ConfigurationError: we lack the rights.
        BrokerUnavailable: no answer in time.
    """
    oldest_ms = (time.time() - _patience_s(config)) * 1000
    producers = [
        (open_range, producer)
        for open_range in ranges
        for producer in transactions.open_producers(open_range.topic, open_range.partition)
        if producer.last_ms < oldest_ms
    ]
    ids = transactions.transactional_ids(producer.producer_id for _, producer in producers) if producers else {}
    opened = []
    for open_range, producer in producers:
        transactional_id = ids.get(producer.producer_id)
        if open_range.topic == GROUP_OFFSETS and not (transactional_id or "").startswith(f"{_group(config, name)}."):
            continue  # Other groups have their offsets in the same partition.
        if transactional_id is None:
            verdict = decide(open_range, producer, None, [])
            opened.append(OpenTransaction(name, open_range, producer, None, None, verdict))
            continue
        state = transactions.coordinator_state(transactional_id)
        decisions = decisions_of(
            config.kafka,
            transactional_id,
            since_ms=min(open_range.since_ms, producer.last_ms) - _HISTORY_MS - CLOCKS_MS,
            partitions=cluster.topics[TRANSACTION_STATE],
            group=reader_group(config),
        )
        done_once = partial(_are_done_once, config, open_range, producer, name)
        verdict = decide(open_range, producer, state, decisions, are_done_once=done_once)
        opened.append(OpenTransaction(name, open_range, producer, transactional_id, state, verdict))
    return opened


def reader_group(config: Config) -> str:
    """The group name for reading topics: one that a reader may use under the ACLs."""
    return f"{config.group_prefix}.client.transactions"


def _are_done_once(config: Config, open_range: OpenRange, producer: OpenProducer, name: str) -> bool:
    """Return whether the versions of the open records show that none was repeated."""
    pipeline = pipeline_of(config, name)
    if "sow" not in pipeline.roles or open_range.topic not in (pipeline.output("sow"), pipeline.output("delta")):
        return False  # Other records have no versions.
    place = open_range.topic, open_range.partition
    return are_done_once(
        read_uncommitted(config.kafka, {place: producer.begin}, {place: open_range.end}, group=reader_group(config))
    )


def _standing(config: Config, cluster: Cluster, name: str) -> list[OpenRange]:
    places = [
        (spec.name, partition)
        for spec in specs(config, [name])
        for partition in range(cluster.topics.get(spec.name, 0))
    ]
    opened = open_ranges(config.kafka, places, group=reader_group(config))
    if offsets := cluster.topics.get(GROUP_OFFSETS):
        place = GROUP_OFFSETS, partition_of(_group(config, name), offsets)
        with contextlib.suppress(Stop):  # Not every user may read it.
            opened += open_ranges(config.kafka, [place], group=reader_group(config))
    return [open_range for open_range in opened if _age_s(open_range) > _patience_s(config)]


def _group(config: Config, name: str) -> str:
    return f"{config.group_prefix}.{name}"


def _patience_s(config: Config) -> float:
    return config.runtime.transaction_timeout_s + _MARGIN_S


def _age_s(open_range: OpenRange) -> float:
    return time.time() - open_range.since_ms / 1000
