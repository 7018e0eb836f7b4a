"""The Kafka names of an installation: the one place that derives a Kafka topic from a topic's name and a role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

Role: TypeAlias = Literal["publish", "sow", "delta", "ack", "dlq", "mark"]
"""The purpose of a topic of a family; also the last part of its name, unless it is mapped to another one.

A plug-in's own outputs have other names, which are plain text: their topics are named in the same way, and not mapped.
"""

NAME_CHARACTERS_MAX: Final = 249
"""The longest topic name in Kafka: longer ones do not fit a directory's name."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

_ROLES: Final[tuple[Role, ...]] = ("publish", "sow", "delta", "ack", "dlq", "mark")


@dataclass(frozen=True, slots=True)
class KafkaNames:
    """The Kafka names of an installation's topics."""

    prefix: str = ""
    """The prefix of its Kafka topics, consumer groups and transactional ids, such as `acme.desk.`."""
    mapped: Mapping[str, Mapping[Role, str]] = field(default_factory=dict)
    """Kafka topics with names of their own, by topic and role; these have no prefix."""

    def topic(self, family: str, role: str) -> str:
        """The Kafka name of a family's topic: `orders`, `sow` → `orders.sow`."""
        own = self.mapped.get(family, {}).get(cast("Role", role))
        return f"{self.prefix}{family}.{role}" if own is None else own

    @property
    def directory(self) -> str:
        """The Kafka name of the topic directory."""
        return f"{self.prefix}_sowstream.topics"

    @property
    def control(self) -> str:
        """The Kafka name of the topic of operators' orders."""
        return f"{self.prefix}_sowstream.control"

    def family_text(self, family: str) -> str:
        """All topics of a family, for a message: `orders.*`, or `orders.* and legacy.orders.in`."""
        own = self.mapped.get(family, {})
        every = [] if len(own) == len(_ROLES) else [f"{self.prefix}{family}.*"]
        return " and ".join([*every, *own.values()])

    def check(self, families: Iterable[str], outputs: Mapping[str, Iterable[str]] | None = None) -> None:
        """Refuse names that Kafka does not accept, and two topics of one name.

        Args:
            families: all configured families.
            outputs: the names of plug-ins' own outputs, by family; None: there are none.

        Raises:
            ValueError: with the name and the remedy.
        """
        owners = {_collision_key(name): f"Sowstream's own {name}" for name in (self.directory, self.control)}
        for family in families:
            for role in (*_ROLES, *(outputs or {}).get(family, ())):
                name, owner = self.topic(family, role), f"{family} ({role})"
                if (problem := _problem(name)) is not None:
                    raise ValueError(f"{owner} would be the Kafka topic {name!r}: {problem}")
                other = owners.setdefault(_collision_key(name), owner)
                if other != owner:
                    raise ValueError(
                        f"{other} and {owner} would both be the Kafka topic {name!r}, or differ from it by '.' and '_' "
                        "only, which Kafka does not tell apart in its metrics: give one of them another name in "
                        "kafka_topics"
                    )


def _collision_key(name: str) -> str:
    """A name with '.' and '_' made equal: Kafka refuses a topic whose name differs from another's only in these."""
    return name.replace(".", "_")


def _problem(name: str) -> str | None:
    if len(name) > NAME_CHARACTERS_MAX:
        return f"it has {len(name)} characters, and Kafka takes {NAME_CHARACTERS_MAX}; shorten the name or the prefix"
    if _LEGAL.fullmatch(name) is None or name in (".", ".."):
        return "Kafka's names have letters, digits, '.', '_' and '-', and are not '.' or '..'"
    if name.startswith("__"):
        return "names that begin with '__' are Kafka's own"
    return None
