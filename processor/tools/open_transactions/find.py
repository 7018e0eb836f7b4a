"""Finds transactions that stand open in the topics of a family, their owners, and the way they must end."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import Stop
from processor.hosting.configured_pipelines import pipeline_of, specs
from processor.kafka.transactions.open_ranges import OpenRange, open_ranges, read_uncommitted
from processor.kafka.transactions.transaction_log import GROUP_OFFSETS, TRANSACTION_STATE, decisions_of, partition_of
from processor.tools.open_transactions.decide import CLOCKS_MS, Verdict, decide
from processor.tools.open_transactions.versions import are_done_once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.config import Config
    from processor.kafka.admin.first_contact import Cluster
    from processor.kafka.transactions.transaction_admin import CoordinatorState, OpenProducer, TransactionAdmin

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
