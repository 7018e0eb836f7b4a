"""The marks of a partition: its input position, and the versions of its keys over their lives.

No version of a key repeats, and nothing is kept of the dead.

A life of a key begins with the command that inserts its record, and ends with its delete or expiry. `first_version` is
the rule: a life that begins with the command at input offset `o` begins at version `base + 2o + 1`. Proof that this is
above every version of the lives before:

1. Each command raises a version by at most one. So a record whose last command has offset `p` has at most version
   `base + 2o + 1 + (p - o)`, which is at most `base + 2p + 1`.
2. The end of a life takes one version more. A delete is a command itself, an expiry is not: it ends a life whose last
   command has offset `p` with at most version `base + 2p + 2`.
3. The next life begins at an offset of at least `p + 1`, and so at version `base + 2p + 3` or higher.

With `o + 1` instead, 2 and 3 could meet: insert at offset 10 (version 11), expiry (12), insert at offset 11 (12 again).

All engines compute the same versions from the same input, also after a restore from nothing. The rule needs input
offsets that only grow. Where they begin from 0 again, as on a mirrored cluster or in a topic that was created again,
`base` is raised once. A mark of each partition keeps it, next to a number that no version has reached::

    key    LIVES_NAME, the last value of which compaction keeps for ever
    value  {"topic_id": "b5xA…", "base": 0, "reserved": 2000000}

Two kinds of records can have higher versions than the rule allows: those that a tool has written, and those of a
plug-in, which may put one many times for each input record. `Lives` therefore remembers the highest version with which
a life has ended, and raises `base` where the rule alone would fall below it.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

LIVES_NAME: Final = b"\0sowstream/lives"
"""The name of the mark."""

RESERVE: Final = 2_000_000
"""Versions that are reserved at a time: the mark is written once for every million input offsets."""


class _Marks(Protocol):
    def get(self, name: bytes) -> bytes | None: ...
    def put(self, name: bytes, value: bytes) -> None: ...


def first_version(base: int, offset: int) -> int:
    """Return the version of a record that the command at an input offset inserts."""
    return base + 2 * offset + 1


class LivesMark(NamedTuple):
    """The value of the mark."""

    topic_id: str
    """Kafka's id of the input topic that the base is for; empty where it is unknown."""
    base: int
    """Added to the versions that the rule gives."""
    reserved: int
    """No version above this one has been used."""

    @classmethod
    def read(cls, value: bytes | None) -> LivesMark | None:
        """Parse a mark; None where there is none, or it has another form."""
        try:
            members = json.loads(value or b"null")
            return cls(str(members["topic_id"]), int(members["base"]), int(members["reserved"]))
        except (ValueError, KeyError, TypeError):
            return None

    def __bytes__(self) -> bytes:
        """The mark's value."""
        return json.dumps(self._asdict(), ensure_ascii=False, separators=(",", ":")).encode()

    def base_in(self, topic_id: str) -> int:
        """Return the base for an input topic: of another one than the mark's, a base above all versions that were used.

        That is also above those of the last transaction, if its records arrived and its mark did not.
        """
        is_other = bool(topic_id and self.topic_id and topic_id != self.topic_id)
        return self.reserved + RESERVE if is_other else self.base


def highest_version(mark: LivesMark | None, topic_id: str, next_offset: int) -> int:
    """Return the highest version that a partition can have used whose input is merged up to an offset."""
    return first_version(0 if mark is None else mark.base_in(topic_id), next_offset) - 1


def mark_above(used: int, topic_id: str, next_offset: int, before: LivesMark | None = None) -> LivesMark:
    """Return the mark with which lives from an input offset on begin above a version.

    Args:
        used: the highest version of a life that has ended, and one more than that of a live record, which will end.
        topic_id: Kafka's id of the input topic.
        next_offset: the input offset.
        before: the mark as it is; None: there is none.
    """
    base, reserved = (0, 0) if before is None else (before.base_in(topic_id), before.reserved)
    base = max(base, used - 2 * next_offset)
    return LivesMark(topic_id, base, max(reserved, first_version(base, next_offset) - 1))


class Lives:
    """The first versions of the lives in one partition, from a commit on; a rewind begins with a new object."""

    def __init__(self, marks: _Marks | None = None, topic_id: str = "", *, base: int = 0) -> None:
        """Read the mark.

        Args:
            marks: the partition's marks; None where nothing can be kept.
            topic_id: Kafka's id of the input topic; empty where it is unknown, and then taken for that of the mark.
            base: the base where there is no mark.
        """
        self._marks, self._topic_id = marks, topic_id
        mark = None if marks is None else LivesMark.read(marks.get(LIVES_NAME))
        self.base = base
        """Added to the versions that the rule gives."""
        self._reserved = 0
        if mark is not None:
            self.base, self._reserved = mark.base_in(topic_id), mark.reserved
            self._topic_id = topic_id or mark.topic_id
        self.ended = 0
        """The highest version with which a life has ended."""
        self.next_offset = 0
        """The input offset from which lives begin that no command begins, such as those of a plug-in's records."""
        self.is_used = False
        """True if the processor begins lives here; a copy has the versions of its input."""

    def first_version(self, key: bytes, offset: int) -> int:  # noqa: ARG002 - a merge of sorted keys needs it
        """Return the version of a record that the command at an input offset inserts."""
        self.is_used = True
        return max(first_version(self.base, offset), self.ended + 1)

    def end(self, key: bytes, version: int) -> None:  # noqa: ARG002 - as above
        """Note the version with which the life of a key has ended."""
        self.is_used = True
        self.ended = max(self.ended, version)

    def settle(self, next_offset: int) -> None:
        """Stage the mark, if it has to change, with the outputs made of the input before an offset."""
        self.next_offset = next_offset
        if not self.is_used:
            return
        missing = self.ended + 1 - first_version(self.base, next_offset)
        if missing > 0:
            self.base += missing
        highest = first_version(self.base, next_offset) - 1
        if highest > self._reserved:
            self._reserved = (highest // RESERVE + 1) * RESERVE  # The same number for any batches.
        elif missing <= 0:
            return
        if self._marks is not None:
            self._marks.put(LIVES_NAME, bytes(LivesMark(self._topic_id, self.base, self._reserved)))


HALF_WRITTEN: Final = "half written"
"""The note of a position of Spark while a `hand_over` writes: key by key, so the outputs are those of no offset."""

HAND_OVER_AGAIN: Final = (
    "a hand_over on Spark has begun and not ended, and the SOW topic is half written. If it has died: repeat it with "
    "the same `Merged`, or as it was saved (`load_merged`), or merge all input and hand it over with mode='repair'"
)
"""The remedy of a half-written SOW topic, for error messages."""


class InputPosition(NamedTuple):
    """The input position of one partition."""

    application_id: str
    """The application whose workers made the outputs."""
    topic_id: str
    """Kafka's id of the input topic: offsets mean nothing in another one of its name."""
    offset: int
    """The next input offset to process."""
    note: str = ""
    """The offset metadata of the group at that offset, see `hosting.commit_metadata`; or `HALF_WRITTEN`."""
    settings: Mapping[str, str] = MappingProxyType({})
    """A digest of each setting without which the outputs would be others; none if a tool wrote the position."""

    @classmethod
    def read(cls, value: bytes | None) -> InputPosition | None:
        """Parse a record's value; None where there is none, or it is not a position."""
        try:
            members = json.loads(value or b"null")
            offset, settings = int(members["offset"]), dict(members.get("settings") or {})
            return cls(str(members["application_id"]), str(members["topic_id"]), offset, str(members["note"]), settings)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def __bytes__(self) -> bytes:
        """The record's value."""
        members = {name: value for name, value in self._asdict().items() if name != "settings" or value}
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
