"""The text of a record's key, the same as the workers compute from the same fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DataType, DecimalType, IntegralType, StringType

# Spark's to_json spells some control characters in another case than the workers, and one byte makes another key.
# The backslash comes first: the others' escapes begin with it.
_ESCAPES: Final = [(raw, json.dumps(raw)[1:-1]) for raw in ("\\", '"', *map(chr, range(0x20)))]


def key_text(fields: Sequence[Column]) -> Column:
    """The key of one field: its value as text. Of several: the compact JSON array of those texts."""
    texts = [field.cast("string") for field in fields]
    if len(texts) == 1:
        return texts[0]
    return F.concat(F.lit("["), F.concat_ws(",", *(_quoted(text) for text in texts)), F.lit("]"))


def is_key_type(data_type: DataType) -> bool:
    """Return whether Spark and the workers agree on the type's text: strings, whole numbers, booleans."""
    whole = isinstance(data_type, DecimalType) and data_type.scale == 0
    return whole or isinstance(data_type, StringType | IntegralType | BooleanType)


def _quoted(text: Column) -> Column:
    escaped = reduce(lambda column, escape: F.replace(column, F.lit(escape[0]), F.lit(escape[1])), _ESCAPES, text)
    return F.concat(F.lit('"'), escaped, F.lit('"'))
