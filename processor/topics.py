"""The topics of one SOW topic's family, their names, and the settings that keep its promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Role: TypeAlias = Literal["publish", "sow", "delta", "ack", "dlq", "mark"]
"""What a topic of a family is for; also the last part of its name."""

Allowance: TypeAlias = Literal["lossy_compaction", "one_replica"]
"""A loss that the settings of a topic accept; what is otherwise refused is then told only."""

DAY_MS = 86_400_000

MESSAGE_MAX_BYTES: Final = 16 * 1024 * 1024
"""Largest record that a family's topics take; what is over `max_record_bytes` still fits the dead-letter topic."""

DLQ_HEADERS_BYTES: Final = 64 * 1024
"""Room for the headers that say why a record was rejected."""

MARK_SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Size of a segment of a mark topic."""

CONTROL_RECORD_MAX_BYTES: Final = 1024 * 1024
"""Largest record of the control topic: a message of a few thousand characters fits many times."""

SNAPSHOT_MS_MAX: Final = 600_000
"""A reader must end a snapshot within this time: later, compaction may have taken a record that was there when it
began, because of one that came after."""


class TopicSpec(NamedTuple):
    """One Kafka topic as it should be."""

    name: str
    """The Kafka topic name, `<family>.<role>`."""
    role: Role
    """What it is for."""
    partitions: int
    """Number of partitions: the same over the whole family, as output goes to the input's partition number."""
    config: Mapping[str, str]
    """Topic settings as Kafka spells them."""
    allows: frozenset[Allowance] = frozenset()
    """What its settings accept."""
    made_of: str = ""
    """The other family's Kafka topic that a processor makes its family of; empty where it is published to."""
    made_into: tuple[str, ...] = ()
    """Families that processors make of it, as far as it is known."""


def topic_name(family: str, role: Role) -> str:
    """The Kafka name of a family's topic: `orders`, `sow` → `orders.sow`."""
    return f"{family}.{role}"


def directory_topic(prefix: str = "") -> str:
    """The Kafka name of the topic directory.

    Args:
        prefix: what the names of all topics of an installation begin with; empty where they have no prefix.
    """
    return f"{prefix}_sowstream.topics"


def directory_spec(prefix: str = "") -> TopicSpec:
    """The topic directory as it should be: one description for each topic, for ever."""
    config = {"cleanup.policy": "compact", "max.message.bytes": str(MESSAGE_MAX_BYTES)}
    return TopicSpec(directory_topic(prefix), "sow", 1, config, allows=frozenset(("one_replica",)))


def control_topic(prefix: str = "") -> str:
    """The Kafka name of the control topic.

    Args:
        prefix: what the names of all topics of an installation begin with; empty where they have no prefix.
    """
    return f"{prefix}_sowstream.control"


def control_spec(prefix: str = "") -> TopicSpec:
    """The control topic as it should be: the last notice of each held partition, and the last order for it.

    Small segments, cleaned early: every worker reads it whole when it starts.
    """
    config = {
        "cleanup.policy": "compact",
        "segment.ms": str(DAY_MS),
        "min.cleanable.dirty.ratio": "0.1",
        "max.message.bytes": str(CONTROL_RECORD_MAX_BYTES),
    }
    return TopicSpec(control_topic(prefix), "sow", 1, config, allows=frozenset(("one_replica",)))


def message_max_bytes(role: Role) -> int:
    """The largest record that a topic must take."""
    return MESSAGE_MAX_BYTES + (DLQ_HEADERS_BYTES if role == "dlq" else 0)


def _config(role: Role, settings: Mapping[str, str]) -> dict[str, str]:
    """What a role insists on, under the topic's own `config` section."""
    config = {"max.message.bytes": str(message_max_bytes(role))}
    if role == "sow":
        # The SOW topic is the only place the records live: compacted, and deletes are kept long enough for a
        # worker that was down to see them.
        config |= {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(DAY_MS),
            "segment.ms": str(DAY_MS),
            "min.compaction.lag.ms": str(SNAPSHOT_MS_MAX),
        }
    elif role == "mark":
        # The last value of each mark, for as long as a record may come again: what the input keeps. Small segments,
        # cleaned early: every start reads it whole.
        config |= {
            "cleanup.policy": "compact,delete",
            "retention.ms": str(7 * DAY_MS),
            "segment.ms": str(DAY_MS // 24),
            "segment.bytes": str(MARK_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.1",
        }
    else:
        # Never compacted: compaction would keep a key's last partial record only.
        config |= {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}
    return config | dict(settings)


def family_specs(
    family: str,
    roles: Iterable[Role],
    *,
    partitions: int,
    settings: Mapping[str, str] | None = None,
    allows: Iterable[Allowance] = (),
) -> list[TopicSpec]:
    """The topics of a family as they should be, in the order records pass through them."""
    allowed = frozenset(allows)
    return [
        TopicSpec(topic_name(family, role), role, partitions, _config(role, settings or {}), allowed) for role in roles
    ]


def copies(brokers: int) -> int:
    """How many copies a new topic gets on a cluster: as many as outlive a broker, where there are others."""
    return min(3, brokers)


def durable(specs: Iterable[TopicSpec], brokers: int) -> list[TopicSpec]:
    """The topics as they are made on a cluster of so many brokers: with three copies, two must have a record.

    Kafka's own default is that one is enough, and then a record is lost with the broker that alone had it.
    """
    if copies(brokers) < 3:
        return list(specs)
    return [spec._replace(config={"min.insync.replicas": "2", **spec.config}) for spec in specs]
