"""Acks: how a publisher asks for them, and the records of an ack topic, which workers write and clients read."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from processor.errors import ConfigurationError, unknown_name
from processor.topics.family import KEY_BYTES_MAX

if TYPE_CHECKING:
    from processor.record import Outgoing

AckType: TypeAlias = Literal["received", "processed", "completed", "persisted", "stats"]
"""Progress of a command: read by a worker, merged, sent to subscribers, committed and replicated; `stats` is the
number of deleted records."""

ACK_TYPES: Final[tuple[AckType, ...]] = ("received", "processed", "completed", "persisted", "stats")
"""In the order in which a command gets them; `persisted` may come last."""


DUPLICATE: Final = "duplicate"
"""The reason of a success whose command was taken before under the same sequence."""

MENDED: Final = "mended"
"""The reason of a success whose sequence was refused before, after higher ones were taken; it stands for itself."""

CONFLICT: Final = "conflict"
"""The reason of a failure whose command expected another version of the record; it is no dead letter."""

MOVED_ACKS: Final = "moved_acks"
"""The output of a topic that has taken the place of another one: the ack topic where that one's publishers wait."""

TEXT_BYTES_MAX: Final = 1024
"""Longest client, command id, correlation id and SOW key of a command."""


class Ack(NamedTuple):
    """The answer to one command."""

    status: Literal["success", "failure"]
    """True if the command was carried out."""
    reason: str | None
    """Of a failure: a reason of the dead-letter topic, a colon, one sentence. Of a success: None, or one word:
    `duplicate`, `mended`, `rekeyed`."""
    ack_type: AckType
    """Progress of the command."""
    topic: str
    """The SOW topic."""
    sow_key: str | None
    """The record's key."""
    client: str | None
    """The publisher's name as it stands in header `client`."""
    sequence: int | None
    """The command's number."""
    command_id: str | None
    """The name that the publisher gave to the command."""
    records_deleted: int | None = None
    """Number of records that a delete removed, where its acks included `stats`; of all its commands together."""
    version: int | None = None
    """The version of the record after a command, in `processed` and, where that was asked for too, in `persisted`; of a
    delete that of the record's end. Of a conflict: the version that the record has, 0 where there is no record. None
    with `persisted` alone: that ack answers all commands up to its sequence at once, so it is of no one record."""

    @property
    def is_duplicate(self) -> bool:
        """True if the command changed nothing, because a command of its client with this sequence was taken before."""
        return self.status == "success" and self.reason == DUPLICATE


def conflict_detail(actual: int, expected: int) -> str:
    """Return the sentence of a conflict: the version that the record has, and the one that the command expects.

    Args:
        actual: the version of the record; 0: there is none.
        expected: the version in the command; 0: none.
    """
    present = f"the record has version {actual}" if actual else "there is no record"
    return f"{present}, and the command expects {f'version {expected}' if expected else 'no record'}"


@lru_cache(maxsize=64)
def ack_types(text: str | None, *, is_delete: bool = False) -> tuple[AckType, ...]:
    """Parse the ack types that a publisher asks for, such as `processed,persisted`, in their order.

    Args:
        text: their names, with commas; None and `none` ask for no ack.
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


def write_ack(
    ack_type: str,
    status: str,
    reason: str | None = None,
    *,
    client: bytes = b"",
    command_id: bytes = b"",
    sequence: int = -1,
    sow_key: bytes | None = None,
    records_deleted: int | None = None,
    version: int | None = None,
) -> Outgoing:
    """Return the record of an ack topic that answers a command; a field without a value is left out.

    Args:
        ack_type: how far the command has come.
        status: `success` or `failure`.
        reason: see `Ack`.
        client: the publisher's name, also the record's key.
        command_id: the command's id; empty: none.
        sequence: the command's number; -1: none.
        sow_key: the record's key; None, and a key that is too long for an ack: none.
        records_deleted: how many records a delete removed.
        version: the version that the record has.
    """
    ack: dict[str, Any] = {"ack_type": ack_type}
    if command_id:
        ack["command_id"] = command_id.decode(errors="replace")
    if client:
        ack["client"] = client.decode(errors="replace")
    if sequence >= 0:
        ack["sequence"] = sequence
    if sow_key is not None and len(sow_key) <= KEY_BYTES_MAX:
        ack["sow_key"] = sow_key.decode(errors="replace")
    ack["status"] = status
    if reason is not None:
        ack["reason"] = reason
    if records_deleted is not None:
        ack["records_deleted"] = records_deleted
    if version is not None:
        ack["version"] = version
    return client, json.dumps(ack, ensure_ascii=False).encode(errors="replace"), []


def read_ack(topic: str, value: bytes) -> Ack:
    """Parse a record of an ack topic; a field that is not there is None.

    Raises:
        ValueError: it is not one.
    """
    ack: Any = json.loads(value)
    try:
        if ack["ack_type"] not in ACK_TYPES or ack["status"] not in ("success", "failure"):
            raise ValueError(f"neither type nor status of an ack: {ack!r:.200}")
        sequence = ack.get("sequence")
        if sequence is not None and type(sequence) is not int:
            raise ValueError(f"no sequence: {sequence!r:.100}")
        deleted, version = ack.get("records_deleted"), ack.get("version")
        if deleted is not None and type(deleted) is not int:
            raise ValueError(f"no number of records: {deleted!r:.100}")
        if version is not None and type(version) is not int:
            raise ValueError(f"no version: {version!r:.100}")
        return Ack(
            ack["status"],
            ack.get("reason"),
            cast("AckType", ack["ack_type"]),
            topic,
            ack.get("sow_key"),
            ack.get("client"),
            sequence,
            ack.get("command_id"),
            deleted,
            version,
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"not an ack: {ack!r:.200}") from None
