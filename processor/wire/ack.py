"""What an ack is: how a publisher asks for one, and what a worker answers."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from processor.config.suggestions import unknown_name
from processor.errors import ConfigurationError

AckType: TypeAlias = Literal["received", "processed", "completed", "persisted", "stats"]
"""How far a command has come: read by a worker, merged, told, committed and replicated; `stats`: what a delete did."""

ACK_TYPES: Final[tuple[AckType, ...]] = ("received", "processed", "completed", "persisted", "stats")
"""In the order in which a command gets them; `persisted` may come last."""


class Ack(NamedTuple):
    """An answer to one command."""

    status: Literal["success", "failure"]
    """Whether the command did what it should."""
    reason: str | None
    """Of a failure: a reason of the dead-letter topic, a colon, one sentence. Of a success: None, or one word, such as
    `duplicate`."""
    ack_type: AckType
    """How far the command has come."""
    topic: str
    """The SOW topic."""
    sow_key: str | None
    """The record's key."""
    client: str | None
    """The publisher's name as it stands in header `client`."""
    sequence: int | None
    """The command's number."""
    command_id: str | None
    """What the publisher called it."""
    records_deleted: int | None = None
    """How many records a delete removed, where its acks included `stats`; of all its commands together."""


@lru_cache(maxsize=64)
def ack_types(text: str | None, *, is_delete: bool = False) -> tuple[AckType, ...]:
    """The types that a publisher asks for, in their order: `processed,persisted`; None and `none` are no ack at all.

    Args:
        text: their names, with commas.
        is_delete: whether the command is a `sow_delete`, the only one that has `stats`.

    Raises:
        ConfigurationError: a type that does not exist, or that the command does not have.
    """
    names = {name.strip() for name in (text or "none").split(",")} - {"none", ""}
    for name in sorted(names):
        if name == "stats" and not is_delete:
            raise ConfigurationError(
                "ack type 'stats' is not supported but for sow_delete; a worker's metrics tell how much it merged"
            )
        if name not in ACK_TYPES:
            raise ConfigurationError(unknown_name("ack type", name, ["none", *ACK_TYPES]))
    return tuple(name for name in ACK_TYPES if name in names)


def read_ack(topic: str, value: bytes) -> Ack:
    """Parse a record of an ack topic; a field that is not there is None.

    Raises:
        ValueError: it is not one.
    """
    said: Any = json.loads(value)
    try:
        if said["ack_type"] not in ACK_TYPES or said["status"] not in ("success", "failure"):
            raise ValueError(f"neither type nor status of an ack: {said!r:.200}")
        sequence = said.get("sequence")
        if sequence is not None and type(sequence) is not int:
            raise ValueError(f"no sequence: {sequence!r:.100}")
        deleted = said.get("records_deleted")
        if deleted is not None and type(deleted) is not int:
            raise ValueError(f"no number of records: {deleted!r:.100}")
        return Ack(
            said["status"],
            said.get("reason"),
            cast("AckType", said["ack_type"]),
            topic,
            said.get("sow_key"),
            said.get("client"),
            sequence,
            said.get("command_id"),
            deleted,
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"not an ack: {said!r:.200}") from None
