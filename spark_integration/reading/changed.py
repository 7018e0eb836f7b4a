"""Lists the paths that a delta carries, to distinguish a published null from an unpublished field."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StringType

if TYPE_CHECKING:
    import pandas as pd

# The function travels to the executors as a whole: they need Python there, but not this package.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

_PATHS = ArrayType(StringType(), containsNull=False)


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

    Paths of deltas without objects inside are listed in the JVM. Spark cannot recurse over JSON, so all others go
    through Python, in Arrow; it runs only in queries that select the column.
    """
    # A brace after the first one begins an object, or is in a text: then Python decides.
    is_flat = F.regexp_like(value, F.lit(r"\A\s*\{[^{]*\z"))
    flat = F.transform(F.json_object_keys(value), lambda name: F.concat(F.lit("/"), _escaped(name)))
    no_json = F.raise_error(F.concat(F.lit("a delta is not JSON: "), F.left(value, F.lit(200)))).cast(_PATHS)
    nested = F.pandas_udf(_in_series(), _PATHS)  # type: ignore[attr-defined]
    return F.when(is_flat, F.coalesce(flat, no_json)).otherwise(nested(F.when(~is_flat, value)))


def _escaped(name: Column) -> Column:
    return F.replace(F.replace(name, F.lit("~"), F.lit("~0")), F.lit("/"), F.lit("~1"))


def _in_series() -> Callable[[pd.Series], pd.Series]:
    """`changed_paths` of a pandas series."""
    import pandas as pd  # noqa: PLC0415 - an executor that only decodes does not need it

    def paths(texts: pd.Series) -> pd.Series:
        # A null comes as None, or as NaN among nulls only.
        return pd.Series([changed_paths(text if isinstance(text, str) else None) for text in texts], dtype=object)

    # PySpark reads the kind of function from its types, which are texts in this file.
    paths.__annotations__ = {"texts": pd.Series, "return": pd.Series}
    return paths


def _leaves(value: Any, path: str) -> Iterator[str]:
    if type(value) is not dict or not value:
        yield path
        return
    # The escapes of `processor.values.pointer`, written out because the executors do not have that module.
    for name, member in value.items():
        yield from _leaves(member, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
