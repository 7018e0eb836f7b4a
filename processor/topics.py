"""The topics of one SOW topic's family, their names, and the settings that keep its promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Role: TypeAlias = Literal["publish", "sow", "delta", "ack", "dlq"]
"""What a topic of a family is for; also the last part of its name."""

DAY_MS = 86_400_000


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


def topic_name(family: str, role: Role) -> str:
    """The Kafka name of a family's topic: `orders`, `sow` → `orders.sow`."""
    return f"{family}.{role}"


def _config(role: Role, *, message_max_bytes: int, settings: Mapping[str, str]) -> dict[str, str]:
    """What a role insists on; the topic's own `config` section may override what is not a promise."""
    config: dict[str, str] = {"max.message.bytes": str(message_max_bytes)}
    if role == "sow":
        # The SOW topic is the only place the records live: compacted, and deletes are kept long enough for a
        # worker that was down to see them.
        config |= {"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS), "segment.ms": str(DAY_MS)}
    else:
        # Never compacted: compaction would keep a key's last partial record only.
        config |= {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}
    return config | dict(settings)


def family_specs(
    family: str,
    roles: tuple[Role, ...],
    *,
    partitions: int,
    message_max_bytes: int,
    settings: Mapping[str, str] | None = None,
) -> list[TopicSpec]:
    """The topics of a family as they should be, in the order records pass through them."""
    return [
        TopicSpec(
            topic_name(family, role),
            role,
            partitions,
            _config(role, message_max_bytes=message_max_bytes, settings=settings or {}),
        )
        for role in roles
    ]
