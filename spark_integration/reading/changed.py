"""Lists the paths that a delta carries, to distinguish a published null from an unpublished field."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StringType

# The function travels to the executors as a whole: they need Python there, but not this package.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def changed_paths(text: str | None) -> list[str]:
    """The JSON Pointers (RFC 6901) of the values that a delta sets, in its order, key fields included.

    Objects are descended into; arrays, scalars and empty objects are one value, as in the workers' diff.
    """
    if text is None:
        return []
    return carried_paths(json.loads(text))


def carried_paths(delta: Any) -> list[str]:
    """`changed_paths` of a parsed delta. An object of a special type is one value, as it never merges."""
    return [] if delta == {} else list(_leaves(delta, ""))


def changed(value: Column) -> Column:
    """`changed_paths` of a column of JSON text.

    Spark cannot recurse over JSON, so this is a Python function; it runs only in queries that select the column.
    """
    return F.udf(changed_paths, ArrayType(StringType(), containsNull=False), useArrow=False)(value)


def _leaves(value: Any, path: str) -> Iterator[str]:
    if type(value) is not dict or not value:
        yield path
        return
    # The escapes of `processor.values.pointer`, written out because the executors do not have that module.
    for name, member in value.items():
        yield from _leaves(member, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
