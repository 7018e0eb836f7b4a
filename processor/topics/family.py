"""The topics of one SOW topic's family, their names, and the settings that keep its promises."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from processor.config import kafka_names
from processor.config.kafka_names import KafkaNames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Role: TypeAlias = kafka_names.Role
"""The purpose of a topic of a family; also the last part of its name."""

Allowance: TypeAlias = Literal["lossy_compaction", "one_replica"]
"""A loss that the settings of a topic accept; its problem is then a warning only."""

DAY_MS = 86_400_000

MESSAGE_MAX_BYTES: Final = 16 * 1024 * 1024
"""More than the largest record that any settings allow; the limit of producers, independent of each topic's limit."""

KEY_BYTES_MAX: Final = 64 * 1024
"""Longest Kafka key of a record."""

PASSED_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of a publisher's headers that are passed on, names and values."""

REMOVED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest header `removed` of a delta."""

FRAMING_BYTES: Final = 16 * 1024
"""Room for Sowstream's own short headers, and for Kafka's overhead of a record."""

DLQ_HEADERS_BYTES: Final = 64 * 1024
"""Room for the headers with the reason of a rejection."""

BATCH_BYTES_MAX: Final = 1_000_000
"""Most bytes of a batch of several records that our producers send: Kafka applies a topic's limit to batches."""

CREATED_MAX_BYTES: Final = 8 * 1024 * 1024
"""The limit of a new topic whose settings need less: the most that managed Kafka usually allows. So there is room for a
larger `max_record_bytes` later, and for a larger input to become a dead letter.
"""

SHORT_MAX_BYTES: Final = 1024 * 1024
"""The limit of a new topic of short records: acknowledgements and marks."""

MARK_SEGMENT_BYTES: Final = 50 * 1024 * 1024
"""Size of a segment of a new mark topic: the least that managed Kafka usually allows."""

RECORD_BYTES_MAX: Final = 10 * 1024 * 1024
"""Highest value of `max_record_bytes`."""

CONTROL_RECORD_MAX_BYTES: Final = 1024 * 1024
"""Largest record of the control topic: a message has a few thousand characters."""

SNAPSHOT_MS_MAX: Final = 600_000
"""Longest time for reading a snapshot: later, compaction may have removed a record that was there when it began,
because of a newer one.
"""


class TopicSpec(NamedTuple):
    """One Kafka topic as it should be."""

    name: str
    """The Kafka topic name, `<prefix><family>.<role>` unless it is mapped."""
    role: str
    """Its purpose."""
    partitions: int
    """Number of partitions: the same over the whole family, as output goes to the input's partition number."""
    config: Mapping[str, str]
    """Topic settings in Kafka's spelling."""
    allows: frozenset[Allowance] = frozenset()
    """The losses that its settings accept."""
    derived_from: str = ""
    """The other family's Kafka topic that a processor derives its family from; empty if publishers write to it."""
    derived_families: tuple[str, ...] = ()
    """Families that processors derive from it, as far as they are known."""
    least: Mapping[str, str] = MappingProxyType({})
    """The necessary part of `config`: a topic is created with it if Kafka's policy refuses the rest."""
    message_bytes: int = 0
    """Largest batch that it must accept, in bytes."""
    family: str = ""
    """The topic of the settings that it belongs to."""
    names: KafkaNames = KafkaNames()
    """The Kafka names of all topics."""
    is_optional: bool = False
    """True if a worker runs without it, with a warning."""
    is_compacted: bool = False
    """True if it keeps the last record of each key, although its role is neither `sow` nor `mark`."""
    may_have_grown: bool = False
    """True if it may have more partitions: another topic takes its place, and only forwarding reads the others."""


def directory_spec(prefix: str = "") -> TopicSpec:
    """The topic directory as it should be: one description for each topic, kept for ever."""
    least = {"cleanup.policy": "compact"}
    config = {**least, "max.message.bytes": str(CREATED_MAX_BYTES)}
    return TopicSpec(KafkaNames(prefix).directory, "sow", 1, config, allows=frozenset(("one_replica",)), least=least)


def control_topic(prefix: str = "") -> str:
    """The Kafka name of the control topic.

    Args:
        prefix: the prefix of all topic names of an installation; may be empty.
    """
    return KafkaNames(prefix).control


def control_spec(prefix: str = "") -> TopicSpec:
    """The control topic as it should be: the last notice of each held partition, and the last order for it.

    Small segments, compacted early: every worker reads all of it at its start.
    """
    least = {"cleanup.policy": "compact", "max.message.bytes": str(CONTROL_RECORD_MAX_BYTES)}
    config = {**least, "segment.ms": str(DAY_MS), "min.cleanable.dirty.ratio": "0.1"}
    return TopicSpec(control_topic(prefix), "sow", 1, config, allows=frozenset(("one_replica",)), least=least)


def message_max_bytes(role: str, max_record_bytes: int = RECORD_BYTES_MAX) -> int:
    """The largest message that a topic of a role must accept: a full record with key, headers and overhead, or a batch.

    Args:
        role: the purpose of the topic.
        max_record_bytes: the setting of its family; if unknown, the largest of all families.
    """
    if role in _SHORT:
        return BATCH_BYTES_MAX + FRAMING_BYTES
    largest = max_record_bytes + KEY_BYTES_MAX + PASSED_BYTES_MAX + FRAMING_BYTES
    if role == "delta":
        largest += REMOVED_BYTES_MAX
    elif role == "dlq":
        largest += DLQ_HEADERS_BYTES
    return max(largest, BATCH_BYTES_MAX + FRAMING_BYTES)


def queue_outputs(queue: str) -> tuple[str, str]:
    """The names of the outputs through which a processor fills a queue: its messages, and those it could not judge."""
    return f"{queue}.queue", f"{queue}.dlq"


_SHORT: Final[frozenset[str]] = frozenset(("ack", "mark"))
"""Topics whose records are short, independent of the record size of the family."""

_WISHES: Final[Mapping[str, frozenset[str]]] = {
    "sow": frozenset(("segment.ms",)),
    "mark": frozenset(("segment.ms", "segment.bytes", "min.cleanable.dirty.ratio")),
}
"""Settings that make a topic smaller, and on which no guarantee depends."""


def _created_max_bytes(role: str, needed: int) -> int:
    """The limit of a new topic: a dead letter has room for the largest input with its headers."""
    if role in _SHORT:
        return max(needed, SHORT_MAX_BYTES)
    return max(needed, CREATED_MAX_BYTES - (DLQ_HEADERS_BYTES if role == "publish" else 0))


def _config(role: str, needed: int, *, is_compacted: bool = False) -> dict[str, str]:
    """The settings of a new topic of a role; the topic's own `config` section has priority over them."""
    config = {"max.message.bytes": str(_created_max_bytes(role, needed))}
    if role == "sow" or is_compacted:
        # The SOW topic is the only place of the records: compacted, and tombstones are kept long enough for a worker
        # that was down.
        config |= {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(DAY_MS),
            "segment.ms": str(DAY_MS),
            "min.compaction.lag.ms": str(SNAPSHOT_MS_MAX),
        }
    elif role == "mark":
        # The last value of each mark, kept for ever: the input position is one, and must outlast any pause. Tombstones
        # remove the marks beyond a limit. Small segments, compacted early: every start reads all of it.
        config |= {
            "cleanup.policy": "compact",
            "segment.ms": str(DAY_MS // 24),
            "segment.bytes": str(MARK_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.1",
        }
    else:
        # Never compacted: compaction would keep a key's last partial record only.
        config |= {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}
    return config


def family_specs(
    family: str,
    roles: Iterable[str],
    *,
    partitions: int,
    settings: Mapping[str, str] | None = None,
    allows: Iterable[Allowance] = (),
    max_record_bytes: int = 1024 * 1024,
    names: KafkaNames | None = None,
    compacted: Collection[str] = (),
) -> list[TopicSpec]:
    """The topics of a family as they should be, in the order in which records pass through them.

    Args:
        family: the topic of the settings.
        roles: the roles of its topics.
        partitions: the number of partitions of each.
        settings: the section `config` of the topic, which has priority over ours.
        allows: the losses that are accepted.
        max_record_bytes: the largest record of the family.
        names: the Kafka names of the installation; None: those without a prefix.
        compacted: other roles than `sow` and `mark` whose topics keep the last record of each key.
    """
    allowed, names, own = frozenset(allows), names or KafkaNames(), dict(settings or {})
    specs = []
    for role in roles:
        needed = message_max_bytes(role, max_record_bytes)
        config = _config(role, needed, is_compacted=role in compacted)
        least = {name: value for name, value in config.items() if name not in _WISHES.get(role, ())}
        least["max.message.bytes"] = str(needed)
        specs.append(
            TopicSpec(
                name=names.topic(family, role),
                role=role,
                partitions=partitions,
                config={**config, **own},
                allows=allowed,
                least={**least, **own},
                message_bytes=needed,
                family=family,
                names=names,
                is_compacted=role in compacted,
            )
        )
    return specs


def copies(brokers: int) -> int:
    """The number of copies of a new topic: enough to survive the loss of a broker, if the cluster has several."""
    return min(3, brokers)


def durable(specs: Iterable[TopicSpec], brokers: int) -> list[TopicSpec]:
    """The topics for a new cluster of so many brokers: with three copies, two must have a record before it counts.

    Kafka's own default is one; a record is then lost with the only broker that had it.
    """
    if copies(brokers) < 3:
        return list(specs)
    in_sync = {"min.insync.replicas": "2"}
    return [spec._replace(config={**in_sync, **spec.config}, least={**in_sync, **spec.least}) for spec in specs]
