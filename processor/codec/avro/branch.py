"""Values of unions that keep their branch, where Python's type alone leaves it open.

The first branch of a kind has plain values; a value of a further one is of a subclass made here and knows its
number, from 1. Where two branches are objects (records, maps), both have marked ones: they never merge, they replace.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from processor.codec.avro.scalar import logical_of
from processor.codec.avro.schema import Node, Schema

_KINDS: Final = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "enum": str,
    "fixed": bytes,
    "record": dict,
    "map": dict,
    "array": list,
}

_MARKED: Final = frozenset((dict, str, bytes, int, float, Decimal))
"""Kinds of values that are distinguished. Of others (UUID, time) the first branch that holds the value is written."""


def kind_of(schema: Schema, node: Node) -> type:
    """Python's type of a schema's plain values."""
    word, body = schema.shape(node)
    logical = logical_of(word, body)
    return _KINDS[word] if logical is None else logical.kind


def classes(schema: Schema, union: list[Node]) -> list[type]:
    """The class that marks each branch of a union."""
    kinds = [kind_of(schema, branch) for branch in union]
    count = Counter(kinds)
    # Nulls do not count: a schema of deltas has one more, or has it elsewhere.
    numbers = itertools.accumulate(kind is not type(None) for kind in kinds)
    return [
        marked(kind, number)
        if kind in _MARKED and (kind in kinds[:index] or (kind is dict and count[dict] > 1))
        else kind
        for index, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
    ]


@functools.cache
def marked(kind: type, index: int) -> type:
    """The class of the values of one kind and one branch. It has another `repr`: two branches are two values."""
    plain_repr: Callable[..., str] = kind.__repr__

    def shown(self: Any) -> str:
        return f"{plain_repr(self)} of branch {index}"

    def reduced(self: Any) -> tuple[Any, ...]:
        return _made, (kind, index, kind(self))

    members = {"__slots__": (), "BRANCH": index, "__repr__": shown, "__reduce__": reduced}
    return type(f"{kind.__name__.capitalize()}OfBranch{index}", (kind,), members)


def _made(kind: type, index: int, value: Any) -> Any:
    return marked(kind, index)(value)


def is_marked(kind: type) -> bool:
    """Return whether a class is one of those made here."""
    return hasattr(kind, "BRANCH")
