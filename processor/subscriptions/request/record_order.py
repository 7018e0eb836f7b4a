"""The order of records that a subscriber asked for, `/price DESC, /id`, and the sort of many keys in slices.

Numbers, and texts that are numbers, go by their value, other texts stand above every number (filter/README.md, rule
5), NULL below everything and NaN right above it. Times go by their instant, between the numbers and the texts. A float
goes by what is written, as in comparisons: 1e23 and the integer that is written so are one number.
Equal records go by the SOW key, so no two places are equal.

A sorted list that takes a million keys in random order misses the processor's caches with each of them. Keys that were
spread over buckets, and are sorted there, take a third of that time, and no step of it takes long::

    keys ──▶ buckets between 1/500 of the keys, as a random sample has them ──▶ sorted, bucket by bucket, lowest first
"""

from __future__ import annotations

import difflib
import os
import random
import re
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from processor.errors import FilterError
from processor.filter import RecordMetadata, compile_expression
from processor.filter.evaluation import Evaluate
from processor.filter.limits import CHARACTERS_MAX
from processor.filter.parse import syntax_error
from processor.filter.syntax_tree import Path, Scalar
from processor.filter.value import first, read_number
from processor.record import Value
from processor.subscriptions.request.subscribe_options import Item, split
from processor.values.instant import Time
from processor.wire.subscriber_headers import is_over

try:
    from processor.subscriptions.request.member_keys import MemberKeys

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from processor.codec import Codec

SortKey: TypeAlias = tuple[Any, ...]
"""The place of a record in an order: compared with those of the same order by `<` and `==`. The last part is the SOW
key, so the keys of two records are never equal."""

_Ranked: TypeAlias = tuple[int, Any]
"""The place of a value: its kind, and where it is among its kind."""

_DIRECTION: Final = re.compile(r"(?:^|\s|(?<=[])'\"]))(asc|desc)\Z", re.IGNORECASE)
_WHOLE_BEGIN: Final = 2**53
"""From here on every float is an integer."""
_DIGITS_SMALL: Final = 15
"""With so many digits before the point a number is below that."""

_TURNED: Final = bytes(max(0, 254 - byte) for byte in range(256))
"""The byte that replaces each byte of UTF-8 in a falling text."""

_NULL: Final = (0, 0)
_NAN: Final = (1, 0)
_NUMBER: Final = 2
_TIME: Final = 3
_TEXT: Final = 4
"""Kinds from the lowest up."""


class SortOrder:
    """An order that was compiled."""

    __slots__ = ("_parts", "member", "steps", "text", "uses_metadata")

    text: str | None
    """The compiled order, equal for orders that are written alike but for spaces and ASC; None: by SOW key alone."""
    member: tuple[str, Callable[[Value], _Ranked]] | None
    """The name of the member whose value is the order, and the place of a value; None: it is anything else."""
    steps: int
    """The work to find the place of an ordinary record, in steps of about 100 ns."""
    uses_metadata: bool
    """True if it asks for `RecordMetadata`; if not, none need be made."""

    def __init__(self, text: str | None) -> None:
        """Compile it.

        Args:
            text: expressions of the filter language separated by commas, each with ASC (which is meant anyway) or DESC.

        Raises:
            FilterError: it cannot be meant; the message shows the place.
        """
        self.text, self.uses_metadata, self.steps, self.member = text, False, 0, None
        self._parts: list[tuple[Evaluate, Callable[[Value], _Ranked]]] = []
        if text is None:
            return
        if len(text) > CHARACTERS_MAX:
            problem = f"it has {len(text)} characters, an order at most {CHARACTERS_MAX}; make it shorter"
            raise _syntax_error(text, CHARACTERS_MAX, problem)
        items = split(text)
        self.text = ", ".join([self._compile(item, text) for item in items])
        if len(items) > 1:
            self.member = None

    def __repr__(self) -> str:
        return f"SortOrder({self.text!r})"

    def key(self, sow_key: bytes, record: Value, metadata: RecordMetadata) -> SortKey:
        """The place of a record.

        Raises:
            RecordRejected: `plugin_failed`: a third party's function raised.
        """
        if len(self._parts) == 1:  # Most orders; a million records are placed in a row.
            value, ranked = self._parts[0]
            return (*ranked(value(record, metadata)), sow_key)
        parts: list[Any] = []
        for value, ranked in self._parts:
            parts += ranked(value(record, metadata))
        parts.append(sow_key)
        return tuple(parts)

    def _compile(self, item: Item, text: str) -> str:
        """Compile one expression with its direction; returns its text."""
        direction = _DIRECTION.search(item.text)
        bare = item.text[: direction.start()].rstrip() if direction else item.text
        if not bare:
            problem = "expected an expression, such as /price, with ASC, DESC or nothing behind it"
            raise _syntax_error(text, item.at, problem)
        try:
            expression = compile_expression(bare)
        except FilterError as error:
            if (misspelt := _misspelt_direction(bare)) is not None:
                problem = f"there is no direction {misspelt[1]!r}; write ASC, DESC or nothing"
                raise _syntax_error(text, item.at + misspelt.start(1), problem) from None
            lines_before = bare.split("\n")[: error.line - 1]
            place = item.at + sum(len(line) + 1 for line in lines_before) + error.column - 1
            # The message speaks of a filter.
            raise _syntax_error(text, place, error.said.replace("the filter ends", "it ends")) from None
        if expression.moves_by_itself:
            raise _syntax_error(
                text, item.at, "its value moves although no record changes; order by what is in the records"
            )
        self.uses_metadata |= expression.uses_metadata
        self.steps += expression.steps
        is_falling = direction is not None and direction[1].lower() == "desc"
        ranked = _falling if is_falling else _rising
        self._parts.append((expression.value, ranked))
        match expression.tree:
            case Path(parts=(str(name),)):
                self.member = name, ranked
        return f"{bare} DESC" if is_falling else bare


def member_keys(order: SortOrder, codec: Codec) -> MemberKeys | None:
    """The compiled keys of an order, for records of a message type; None if there are none."""
    text = codec.json_text
    if not has_compiled or text is None or order.member is None:
        return None
    name, ranked = order.member
    return MemberKeys(text.write(name), is_falling=ranked is _falling, parse=text.parse, ranked=ranked, is_over=is_over)


def _misspelt_direction(text: str) -> re.Match[str] | None:
    """The word behind an expression, in group 1, if it looks like ASC or DESC."""
    word = re.search(r"\s([A-Za-z]+)\s*$", text)
    if word is None or not difflib.get_close_matches(word[1].lower(), ("asc", "desc", "ascending", "descending"), n=1):
        return None
    return word


def _syntax_error(text: str, at: int, said: str) -> FilterError:
    return syntax_error(text, at, said, "order_by")


def _rising(value: Value) -> _Ranked:
    """The place of a value, the lowest first; of an array that of its element 0."""
    kind = type(value)
    if kind is str and value:
        number = read_number(value)
        return (_TEXT, value) if number is None else _of_number(number)
    if kind is int:
        return _NUMBER, value
    plain = value if kind is float or kind is Decimal else first(value)
    if plain is None:
        return _NULL
    if type(plain) is Time:
        return _TIME, plain.instant
    return _rising(plain) if type(plain) is str else _of_number(plain)


def _falling(value: Value) -> _Ranked:
    """The same, the highest first."""
    rank, place = _rising(value)
    if rank == _TIME:
        return -rank, (not place.is_dated, -place.seconds, _fallen(place.fraction))
    return -rank, (_fallen(place) if rank == _TEXT else _minus(place))


def _of_number(value: Scalar) -> _Ranked:
    """The place of a number. Up to 2^53 a float's decimal text lies on the same side of integers as its value."""
    if isinstance(value, Decimal):
        return _NAN if value.is_nan() else (_NUMBER, _written(value))
    if type(value) is float and not -_WHOLE_BEGIN < value < _WHOLE_BEGIN and value - value == 0.0:
        return _NUMBER, Decimal(repr(value))
    return (_NUMBER, value) if value == value else _NAN  # noqa: PLR0124 - it is how NaN is told


def _written(value: Decimal) -> float | Decimal | _Exact:
    """A Decimal in a form that is placed among floats by their decimal texts: 0.1 and 0.1 are one number."""
    if value.adjusted() >= _DIGITS_SMALL and not -_WHOLE_BEGIN < value < _WHOLE_BEGIN:
        return value
    near = float(value)
    return near if Decimal(repr(near)) == value else _Exact(value)


def _minus(place: Any) -> Any:
    """A number's place with the other sign; of a Decimal without rounding it."""
    return place.copy_negate() if isinstance(place, Decimal | _Exact) else -place


def _fallen(text: str) -> bytes:
    """A text as bytes that are below those of the texts it is above.

    UTF-8 sorts as its text does, and never has the byte 255: that may stand for the end, above every continuation.
    """
    return text.encode(errors="surrogatepass").translate(_TURNED) + b"\xff"


class _Exact:
    """A Decimal with more digits than a float has: next to a float it is compared with the decimal text of that."""

    __slots__ = ("value",)

    def __init__(self, value: Decimal) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _as_exact(other))

    def __lt__(self, other: object) -> bool:
        return bool(self.value < _as_exact(other))

    def __gt__(self, other: object) -> bool:
        return bool(self.value > _as_exact(other))

    __hash__ = None  # type: ignore[assignment]

    def copy_negate(self) -> _Exact:
        """The number with the other sign."""
        return _Exact(self.value.copy_negate())


def _as_exact(other: object) -> Any:
    """The number that an `_Exact` is compared with."""
    if type(other) is float:
        return Decimal(repr(other))
    return other.value if isinstance(other, _Exact) else other


BUCKET_KEYS: Final = 500
"""Keys of a bucket on average; the largest of a thousand has about seven times as many."""


class SlicedSort:
    """Keys that are sorted in slices. More of them may be added above those that were returned."""

    def __init__(self, keys: list[SortKey], above: SortKey | None = None, bucket_keys: int = BUCKET_KEYS) -> None:
        """Begin with keys in any order.

        Args:
            keys: the keys; the list belongs to the sort from then on.
            above: smaller keys are left out; None: none is.
            bucket_keys: the keys of a bucket on average.
        """
        self.bound: SortKey | None = above
        """All keys below it were returned or left out, and none that is not; None: before the first of them."""
        self.is_done = False
        """True if all keys were returned."""
        self._keys = keys
        self._above = above
        self._spread = 0  # Keys that are in buckets, or were left out.
        self._next_bucket = 0
        count = len(keys) // bucket_keys
        # Any sample will do: it decides how long a slice takes, and nothing else.
        self._bounds = sorted(random.Random(count).sample(keys, count))  # noqa: S311
        self._buckets: list[list[SortKey]] = [[] for _ in range(count + 1)]

    def add(self, key: SortKey) -> None:
        """Add a key that is not below `bound`, before all are sorted."""
        if self._spread < len(self._keys):
            self._keys.append(key)
        else:
            self._buckets[bisect_right(self._bounds, key)].append(key)

    def advance(self, keys_max: int) -> list[SortKey]:
        """Sort the next slice: spread so many keys, or sort so many, and at most a bucket more.

        Returns:
            The next keys in order; none while keys are spread.
        """
        if self._spread < len(self._keys):
            self._spread_keys(keys_max)
            return []
        part: list[SortKey] = []
        while len(part) < keys_max and not self.is_done:
            number = self._next_bucket
            bucket, self._buckets[number] = self._buckets[number], []
            bucket.sort()
            part += bucket
            self._next_bucket = number + 1
            self.is_done = number == len(self._bounds)
            if not self.is_done and (self.bound is None or self.bound < self._bounds[number]):
                self.bound = self._bounds[number]
        if self.is_done:
            self._keys, self._bounds, self._buckets = [], [], []
        return part

    def _spread_keys(self, keys_max: int) -> None:
        bounds, buckets, above = self._bounds, self._buckets, self._above
        end = self._spread + keys_max
        for key in self._keys[self._spread : end]:
            if above is None or key >= above:
                buckets[bisect_right(bounds, key)].append(key)
        self._spread = end
