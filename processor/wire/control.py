"""The records of the control topic, and the only place that knows how they are written: JSON with a format number.

========================================================  ============================================================
key                                                       value
========================================================  ============================================================
`held/<application_id>/<pipeline>/<partition>`            `Notice`, by the worker that has the partition; nothing once
                                                          the partition goes on
`failed/<application_id>/<pipeline>/<host>-<dir>-<slot>`  `Failure`, by the process whose pipeline has failed; nothing
                                                          once it runs
`resume/<application_id>/<pipeline>/<partition or *>`     `Order`, by an operator
========================================================  ============================================================
"""

from __future__ import annotations

import json
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

FORMAT: Final = 1
"""The format that this version writes, and the newest that it reads.

A reader ignores fields that it does not know. So the number grows only where a reader that ignores a new field would do
something wrong.
"""
ALL_PARTITIONS: Final = "*"
"""The place of an order for all partitions that are held."""
_MESSAGE_MAX: Final = 4_000
"""Characters of a message; a longer one is cut."""

Kind: TypeAlias = Literal["held", "failed", "resume"]
"""The kind of a record."""

_KINDS: Final = frozenset(get_args(Kind))


class Key(NamedTuple):
    """The key of a record."""

    kind: Kind
    """The kind of the record."""
    application_id: str
    """Whose."""
    pipeline: str
    """The pipeline's name."""
    place: str
    """A partition number, `*`, or the name of a process."""

    def encode(self) -> bytes:
        """Encode it for Kafka."""
        return "/".join(self).encode()


def decode_key(data: bytes | None) -> Key | None:
    """The key of a record; None for one that this version does not know."""
    parts = (data or b"").decode(errors="replace").split("/")
    if len(parts) != len(Key._fields) or parts[0] not in _KINDS:
        return None
    return Key(cast("Kind", parts[0]), *parts[1:])


class _Entry(BaseModel):
    """The fields of every record."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at_ms: int
    """When it was written, milliseconds since the epoch."""

    def encode(self) -> bytes:
        """Encode it for Kafka."""
        return json.dumps({"format": FORMAT, **self.model_dump()}, separators=(",", ":")).encode()


class _OfProcess(_Entry):
    """The fields of the records that workers write."""

    message: str
    """The problem, and the advice to solve it."""
    host: str
    """The host's name."""
    pid: int
    """The process."""
    version: str
    """Of Sowstream."""


class Notice(_OfProcess):
    """A worker's notice that a partition is held; written again with each try."""

    reason: str
    """One of `HoldReason`, or one that a newer version knows."""
    offset: int
    """The input offset it stands at; -1: not known."""
    since_ms: int
    """When it was held first, milliseconds since the epoch."""
    tries: int
    """How often it was asked again since."""
    next_try_ms: int
    """When it is asked next, milliseconds since the epoch."""


class Failure(_OfProcess):
    """A worker's notice that a pipeline has failed; written again with each try."""


class Order(_Entry):
    """An operator's order; see `Resume`."""

    partition: int | None
    """Which one; None: all that are held."""
    skip_until: int | None
    """The last input offset to be skipped; None: nothing is skipped."""
    by: str
    """Who gave it: `user@host`."""


Entry = TypeVar("Entry", Notice, Failure, Order)


def decode(kind: type[Entry], data: bytes) -> Entry | None:
    """A record's value; None for one of a newer format, and for one that is not ours."""
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict) or not 1 <= tree.get("format", 0) <= FORMAT:
            return None
        return kind.model_validate(tree)
    except (ValueError, TypeError, ValidationError):
        return None


def shortened(message: str) -> str:
    """A message that fits a record with ease."""
    return message if len(message) <= _MESSAGE_MAX else f"{message[:_MESSAGE_MAX]} …"
