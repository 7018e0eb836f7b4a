"""The values that a message type can write in one field: declared by message types, for the checks of merge rules."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

ValueKind: TypeAlias = Literal["boolean", "number", "text", "bytes", "time", "array", "object", "other"]
"""A kind of value other than null. Dates and times of day are `time`; a UUID is `other`."""


class FieldType(NamedTuple):
    """The type of one field."""

    kinds: frozenset[ValueKind] | None = None
    """The kinds of its values. None: no schema restricts them. Empty: the schema has no such field."""
    any_number: bool = False
    """True if a number of any size and precision can be written there, as in JSON.

    If not, a sum of doubles is rounded to a double, and one that does not fit in 64 bits or in the field's decimals is
    rejected.
    """
