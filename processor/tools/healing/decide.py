"""Decides how a key moves to its home partition: one step at a time, each from the present SOW topic. Pure.

A key is healed in up to three steps, and no step can lose a record:

1. If the newest copy is not the one at home, it is published at home. Its own partition keeps it until that is done.
2. Every other copy is deleted.
3. The record at home is published once more. A subscriber that identifies records by key alone has taken the deletion
   of a copy for the end of the record; now it has the record again. For a subscriber of deltas this one is empty, and
   its `delta_base` shows that the record was there.

Every command carries the version that it expects. An update that comes in between makes the command a conflict, which
changes nothing, and the next step is decided from the new state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from processor.wire.heads import command_header
from processor.wire.publisher_headers import expect_version_header, published_again

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from processor.record import Header, Headers
    from processor.tools.healing.placement import Copy


class HealCommand(NamedTuple):
    """One record for the input topic."""

    partition: int
    """The partition that it is sent to, independently of its key's hash."""
    key: bytes
    """The text of the key."""
    value: bytes | None
    """The full record of a `publish`; None for a `sow_delete`."""
    headers: Headers
    """The command, the version it expects, and the publisher's own headers."""


@dataclass(slots=True)
class Case:
    """A key that has a copy in a wrong place, and the steps taken for it so far."""

    own_key: bytes
    """The canonical text of the key."""
    home: int
    """The partition that it belongs to."""
    published: tuple[Copy, Copy | None] | None = None
    """The copy that was published at home, and the record that was there then."""
    deleted: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The copies for which a deletion was sent: key and partition, and the offset that they had."""
    is_republished: bool = False
    """True if the record at home was published once more, after the last deletion."""
    problem: str = ""
    """The reason why it cannot be healed; empty while there is none."""


def next_step(case: Case, copies: Sequence[Copy], codec_headers: Collection[str] = ()) -> list[HealCommand]:
    """The next commands for a key; none when it is healed, or cannot be healed.

    Args:
        case: the key; the step is noted in it.
        copies: all its live records, in every spelling and partition.
        codec_headers: headers that belong to the message of one SOW record only.
    """
    own = next((copy for copy in copies if copy.partition == case.home and copy.key == case.own_key), None)
    others = [copy for copy in copies if copy is not own]
    if not others:
        if own is None or not case.deleted or case.is_republished:
            return []
        case.is_republished = True
        return [_publish(case, own, own, codec_headers)]
    case.is_republished = False
    newest = max(copies, key=lambda copy: (copy.timestamp_ms, copy is own))
    if newest is not own and not _is_superseded(case, newest, own):
        if case.published == (newest, own):
            case.problem = "its publish was rejected; `sowstream dlq list` says why"
            return []
        case.published = (newest, own)
        return [_publish(case, newest, own, codec_headers)]
    if any(case.deleted.get((copy.key, copy.partition)) == copy.offset for copy in others):
        case.problem = "its deletion was rejected; `sowstream dlq list` says why"
        return []
    case.deleted |= {(copy.key, copy.partition): copy.offset for copy in others}
    return [
        HealCommand(copy.partition, copy.key, None, [command_header("sow_delete"), _expected(copy)]) for copy in others
    ]


def describe_step(case: Case, copies: Sequence[Copy]) -> str:
    """A line about the next steps for a key."""
    own = next((copy for copy in copies if copy.partition == case.home and copy.key == case.own_key), None)
    newest = max(copies, key=lambda copy: (copy.timestamp_ms, copy is own))
    others = ", ".join(_place(case, copy) for copy in copies if copy is not newest)
    shown = case.own_key.decode(errors="replace")
    if newest is own:
        return f"{shown}: {_place(case, own)} stays; {others} is deleted"
    moved = f"{shown}: {_place(case, newest)} is moved to partition {case.home}"
    if own is None:
        return f"{moved}; {others} is deleted" if others else moved
    gone = ", ".join(_place(case, copy) for copy in copies if copy is not newest and copy is not own)
    return f"{moved}, over {_place(case, own)}" + (f"; {gone} is deleted" if gone else "")


def _place(case: Case, copy: Copy) -> str:
    spelled = "" if copy.key == case.own_key else f" as {copy.key.decode(errors='replace')}"
    return f"partition {copy.partition}{spelled} version {copy.version}"


def _is_superseded(case: Case, newest: Copy, own: Copy | None) -> bool:
    """Return whether a copy was published at home already: the clocks of two workers may order the two differently."""
    if case.published is None or own is None:
        return False
    copy, before = case.published
    return copy.offset == newest.offset and copy.partition == newest.partition and own != before


def _publish(case: Case, copy: Copy, own: Copy | None, codec_headers: Collection[str]) -> HealCommand:
    """A full publish at home, with the publisher's own headers and the record's own time to live."""
    kept = published_again(copy.headers, frozenset(codec_headers))
    return HealCommand(case.home, case.own_key, copy.value, [command_header("publish"), _expected(own), *kept])


def _expected(copy: Copy | None) -> Header:
    return expect_version_header(0 if copy is None else copy.version)
