"""Finds the versions that came twice, on the SOW topic and on the delta topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.endtoend.oracle import Seen

SHOWN_MAX = 5
_GONE = ("delete", "expire")


def repeated_versions(
    records: Iterable[Seen], *, may_repeat: bool = False, may_expire_in_vain: bool = False
) -> list[str]:
    """Return a line for each broken promise about the versions of a topic.

    Args:
        records: the topic's, partition by partition.
        may_repeat: whether a record may come again as it was, as after a failure of a writer without transactions.
        may_expire_in_vain: whether another record may follow the end of a life by the clock, before which a command had
            been published in time: a crash without transactions (`processor/docs/internals/at-least-once.md`).
    """
    versions: dict[tuple[int, bytes | None], dict[int, Seen]] = {}
    last: dict[tuple[int, bytes | None], int] = {}
    wrong: list[str] = []
    for record in records:
        place, version = (record.partition, record.key), int(record.headers["version"])
        own = versions.setdefault(place, {})
        before = own.setdefault(version, record)
        is_allowed = (may_repeat and _content(before) == _content(record)) or (
            may_expire_in_vain and before.headers.get("kind") == "expire"
        )
        if before is not record and not is_allowed:
            wrong.append(f"{record.key!r} has version {version} at offsets {before.offset} and {record.offset}")
        elif before is record and version <= last.get(place, 0):
            wrong.append(f"{record.key!r} has version {version} after {last[place]}, at offset {record.offset}")
        last[place] = version
    return wrong[:SHOWN_MAX] + ([f"and {len(wrong) - SHOWN_MAX} more"] if len(wrong) > SHOWN_MAX else [])


def lives_of(deltas: Iterable[Seen]) -> tuple[int, int]:
    """Return the number of lives that began, and of those that ended by an expiry."""
    kinds = [record.headers.get("kind") for record in deltas]
    return kinds.count("insert"), kinds.count("expire")


def _content(record: Seen) -> tuple[object, ...]:
    return record.key, record.value, record.headers
