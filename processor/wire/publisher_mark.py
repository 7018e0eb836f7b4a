"""The mark of a publisher: the numbers that one partition has taken and refused from one client, and its bytes.

In memory a mark is one text: the highest number that was taken (-1: none), then words. In the mark topic the number is
the value of the record and the words are its header `numbers`, which an older version leaves alone. The parts:

==================  ================================================================================================
part                meaning
==================  ================================================================================================
`105`               105 is the highest number that was taken
`refused=2,88+5`    2 and 90 to 95 were refused and may be used again: for each range the distance to the end of the
                    range before it, and how many numbers follow its first one
`unknown=3-70`      refused numbers between 3 and 70 are no longer listed, so that these numbers can be either
`passed=120`        numbers up to 120 were forwarded; present beside `refused` alone
`once`              the client has used one number only
==================  ================================================================================================

A number above the highest one is new. A number below it was taken, unless it is listed. Two refused numbers make one
range if nothing between them was taken or forwarded before the second one was refused: the numbers between them are
those of other partitions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.wire.headers import last_value

if TYPE_CHECKING:
    from processor.record import Headers, Outgoing

RANGES_MAX: Final = 256
"""Most ranges of refused numbers that a mark lists; the lowest ones go first."""

TEXT_BYTES_MAX: Final = 12_000
"""Longest text of a mark: so many ranges of numbers of 19 digits each. Usually it has some 1,000 bytes."""

FIRST_MAX: Final = 2**62
"""The highest first number of a client: half of all numbers. A clock in nanoseconds passes it in the year 2116."""

WORDS_HEADER: Final = "numbers"
"""The header of a record of the mark topic with the words of a publisher's mark."""

PUBLISHERS: Final = b"sequence/"
"""The beginning of the name of a publisher's mark."""

_RANDOM: Final = "~once-"
"""Stands before the random digits of a name that a client has made for itself; former versions look for `-`."""

_ONE_SHOT: Final = re.compile(rb"(?s:.*)~once-[0-9a-f]{8}|[^/]*/key/(?s:.*)/[0-9a-f]{32}")
"""Names for one occasion: those of `random_name`, and the gateway's `USER/key/IDEMPOTENCY-KEY/DIGEST`."""

_PERHAPS: Final = re.compile(rb"(?s:.*)-[0-9a-f]{8}|[^/]*/key/(?s:.*)")
"""The names for one occasion of former versions, which a publisher may have chosen, such as `ledger-20261127`."""


class PublisherMark:
    """The numbers of one client in one partition."""

    __slots__ = ("_ends", "_starts", "highest", "is_once", "passed", "unknown")

    def __init__(self, text: bytes | None = None) -> None:
        """Read a mark; None: nothing of the client is known.

        Raises:
            ValueError: the text is none of a mark.
        """
        self.highest = -1
        """The highest number that was taken."""
        self.unknown: tuple[int, int] | None = None
        """The lowest and the highest of the refused numbers that are no longer listed."""
        self.passed = -1
        """The highest number that was forwarded, as far as it matters."""
        self.is_once = False
        """True if the client has used one number only."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        if text is None:
            return
        first, _, more = text.partition(b" ")
        self.highest = int(first)
        for word in more.split():
            name, _, value = word.partition(b"=")
            if name == b"refused":
                self._read_refused(value)
            elif name == b"unknown":
                low, _, high = value.partition(b"-")
                self.unknown = int(low), int(high)
            elif name == b"passed":
                self.passed = int(value)
            elif name == b"once":
                self.is_once = True

    def text(self) -> bytes:
        """Return the mark as a text."""
        parts = [b"%d" % self.highest]
        if self.is_once:
            parts.append(b"once")
        if self._starts:
            parts.append(b"refused=" + self._refused())
            if self.passed >= 0:
                parts.append(b"passed=%d" % self.passed)
        if self.unknown is not None:
            parts.append(b"unknown=%d-%d" % self.unknown)
        return b" ".join(parts)

    @property
    def refused(self) -> list[tuple[int, int]]:
        """The first and the last number of each listed range of refused numbers, in their order."""
        return list(zip(self._starts, self._ends, strict=True))

    def is_duplicate(self, number: int, jump_max: int) -> bool:
        """Return whether a number was taken before.

        Args:
            number: the number of a command.
            jump_max: how far it may be above the highest one; 0: any distance.

        Raises:
            RecordRejected: `bad_header`: it is too far above the highest one, or it cannot be known.
        """
        if number > self.highest:
            self.check_jump(number, jump_max)
            return False
        if self._range_of(number) >= 0:
            return False
        if self.unknown is not None and self.unknown[0] <= number <= self.unknown[1]:
            raise RecordRejected(
                "bad_header",
                f"header sequence is {number}: whether it was taken is not known, because more numbers of this client "
                f"were refused from {self.unknown[0]} to {self.unknown[1]} than a mark lists. If the record lacks the "
                f"command, send it again under a number above {self.highest}",
            )
        return True

    def check_jump(self, number: int, jump_max: int) -> None:
        """Refuse a number that is too far above the highest one.

        Raises:
            RecordRejected: `bad_header`.
        """
        if not jump_max:
            return
        if self.highest < 0:
            if number > max(FIRST_MAX, jump_max):
                raise RecordRejected(
                    "bad_header",
                    f"header sequence is {number}: nothing of this client was taken here, and its first number is at "
                    f"most {max(FIRST_MAX, jump_max)}, unless sequence_jump_max is 0",
                )
        elif number - self.highest > jump_max:
            raise RecordRejected(
                "bad_header",
                f"header sequence is {number}, and the highest number of this client that was taken here is "
                f"{self.highest}: a number may be at most {jump_max} above it (sequence_jump_max). Go on from "
                f"{self.highest}, or raise the setting",
            )

    def accept(self, number: int) -> None:
        """Note that a command was taken."""
        if number > self.highest >= 0 and not self._starts:  # Most are: a fifth of the time.
            self.highest, self.is_once = number, False
            return
        self._use(number)
        self._remove(number)
        self.highest = max(number, self.highest)

    def refuse(self, number: int) -> bool:
        """Note that a command was refused; return whether the mark has changed."""
        if number <= self.highest or self._range_of(number) >= 0:
            return False
        self._use(number)
        place = bisect_right(self._starts, number)
        if place and self._ends[place - 1] > max(self.highest, self.passed):
            self._ends[place - 1] = number
        else:
            self._starts.insert(place, number)
            self._ends.insert(place, number)
            self._bound()
        return True

    def pass_on(self, number: int) -> bool:
        """Note that a command is forwarded; return whether it was refused here before."""
        if not self._starts:
            return False
        was_refused = self._range_of(number) >= 0
        self._remove(number)
        if self._starts:
            self.passed = max(self.passed, number)
        return was_refused

    def _use(self, number: int) -> None:
        """Note whether the client has used one number only."""
        if self.highest < 0 and not self._starts and self.unknown is None:
            self.is_once = True
        elif self.is_once:
            self.is_once = number == (self._starts[0] if self.highest < 0 else self.highest)

    def _range_of(self, number: int) -> int:
        """Return the place of the range that has a number; -1 for none."""
        place = bisect_right(self._starts, number) - 1
        return place if place >= 0 and number <= self._ends[place] else -1

    def _remove(self, number: int) -> None:
        """Remove a number from the refused ones."""
        if not self._starts or (place := self._range_of(number)) < 0:
            return
        start, end = self._starts[place], self._ends[place]
        kept = [(low, high) for low, high in ((start, number - 1), (number + 1, end)) if low <= high]
        self._starts[place : place + 1] = [low for low, _ in kept]
        self._ends[place : place + 1] = [high for _, high in kept]
        if not self._starts:
            self.passed = -1
        self._bound()

    def _bound(self) -> None:
        """Take the lowest ranges from a list that is too long."""
        while len(self._starts) > RANGES_MAX:
            low, high = self._starts.pop(0), self._ends.pop(0)
            if self.unknown is not None:
                low, high = min(low, self.unknown[0]), max(high, self.unknown[1])
            self.unknown = low, high

    def _refused(self) -> bytes:
        ranges, before = [], 0
        for start, end in zip(self._starts, self._ends, strict=True):
            ranges.append(b"%d" % (start - before) if start == end else b"%d+%d" % (start - before, end - start))
            before = end
        return b",".join(ranges)

    def _read_refused(self, value: bytes) -> None:
        before = 0
        for text in value.split(b","):
            distance, _, count = text.partition(b"+")
            start = before + int(distance)
            before = start + int(count or 0)
            self._starts.append(start)
            self._ends.append(before)


def mark_record(name: bytes, text: bytes | None) -> Outgoing:
    """Return the record of the mark topic for a mark; one that is not a publisher's is written as it is.

    Args:
        name: its name.
        text: its text; None removes it.
    """
    if text is None or not name.startswith(PUBLISHERS):
        return name, text, []
    value, _, words = text.partition(b" ")
    return name, value, [(WORDS_HEADER, words)] if words else []


def mark_text(name: bytes, value: bytes | None, headers: Headers | None) -> bytes | None:
    """Return the text of a mark from its record in the mark topic; None for a tombstone."""
    if value is None or not headers or not name.startswith(PUBLISHERS):
        return value
    words = last_value(headers, WORDS_HEADER)
    return b"%b %b" % (value, words) if words else value


def random_name(prefix: str, digits: str) -> str:
    """Return the name under which a client numbers commands that its caller does not number.

    Args:
        prefix: the client's own name.
        digits: eight random hexadecimal digits.
    """
    return f"{prefix}{_RANDOM}{digits}"


def is_reserved(client: str) -> bool:
    """Return whether a publisher may not choose a name, as it has the form of those for one occasion."""
    return _ONE_SHOT.fullmatch(client.encode(errors="replace")) is not None


def is_one_shot(name: bytes, text: bytes) -> bool:
    """Return whether a mark is that of a name for one occasion.

    Such names are the random ones of this project's clients, the idempotency keys of the gateway, and each name that
    has used one number only.
    """
    if not name.startswith(PUBLISHERS):
        return False
    return b" once" in text or _ONE_SHOT.fullmatch(_client(name)) is not None


def may_be_one_shot(name: bytes) -> bool:
    """Return whether a former version may have made a name for one occasion; it may be a regular one as well."""
    return name.startswith(PUBLISHERS) and _PERHAPS.fullmatch(_client(name)) is not None


def _client(name: bytes) -> bytes:
    """The client of a mark's name, behind the place where its commands came in."""
    return name.split(b"/", 2)[-1]
