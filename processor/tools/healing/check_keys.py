"""Looks for keys in wrong partitions without changing anything: for `topics check` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.merge import KeyFields
from processor.tools.healing.placement import Homes
from processor.tools.healing.sow_log import SowLog
from processor.topics import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.config import Config
    from processor.kafka.admin.admin import Admin

NEWEST_MAX: Final = 50_000
"""Offsets of a topic that a short look reads."""


class KeyCheck(NamedTuple):
    """The result of checking the keys of one topic."""

    topic: str
    """The Kafka topic."""
    problem: Problem | None
    """The problem of keys in wrong partitions; None if there are none."""
    extent: str
    """The part of the topic that was read, for people."""


def checkable_topics(config: Config) -> list[str]:
    """The topics in which each key has one partition: published to, and without `foreign_partition: accept`."""
    return [name for name, topic in config.topics.items() if topic.foreign_partition != "accept"]


def check_keys(
    config: Config,
    admin: Admin,
    name: str,
    *,
    newest_max: int | None = NEWEST_MAX,
    on_read: Callable[[int], None] = lambda _: None,
) -> KeyCheck | None:
    """Look for keys in partitions that their hash does not choose; None if the topic does not exist.

    Args:
        config: the settings.
        admin: administration of the cluster.
        name: a topic that publishers write to.
        newest_max: the number of offsets to read, the newest ones; None: all.
        on_read: called with the number of records of each batch.

    Raises:
        Stop: the topic cannot be read.
    """
    sow = config.kafka_names.topic(name, "sow")
    partitions = admin.cluster().topics.get(sow)
    if partitions is None:
        return None
    homes = Homes(KeyFields(config.topics[name].key_fields), partitions)
    log = SowLog(config.kafka, admin, topic=sow, partitions=partitions, group=f"{config.group_prefix}.{name}")
    try:
        misplaced = log.find_misplaced(homes, newest_max=newest_max, on_read=on_read)
        extent = f"{misplaced.looked:,} of {misplaced.total:,} offsets read"
        if misplaced.looked < misplaced.total:
            extent += ", the newest"
        if not misplaced.copies:
            return KeyCheck(sow, None, extent)
        own_keys = {homes.own_key(key) for key, _ in misplaced.copies}
        places: dict[bytes, set[int]] = {}
        for key, partition in log.places_of(own_keys, homes):
            places.setdefault(homes.own_key(key), set()).add(partition)
    finally:
        log.close()
    return KeyCheck(sow, _problem(name, sow, places, extent, is_cut=misplaced.is_cut), extent)


def _problem(name: str, sow: str, places: dict[bytes, set[int]], extent: str, *, is_cut: bool) -> Problem:
    twice = [key for key, partitions in places.items() if len(partitions) > 1]
    example = min(twice or places)
    where = " and ".join(map(str, sorted(places[example])))
    least = "at least " if is_cut or "newest" in extent else ""
    text = (
        f"has {least}{len(twice):,} keys in two partitions" if twice else "has no key in two partitions"
    ) + f", and {len(places) - len(twice):,} in a wrong place only"
    what = f"{text} ({extent}), such as {example.decode(errors='replace')!r} in partition {where}"
    to_do = f"sowstream topics heal {name}; producers need murmur2 (librdkafka: partitioner=murmur2_random)"
    return Problem("warn", sow, what, to_do)
