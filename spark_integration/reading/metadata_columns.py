"""Tells the columns that say something about a record, such as its version, from the fields of the record itself."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql.types import StructField

_ABOUT: Final[dict[str, Any]] = {"sowstream": "about"}


def about(name: str, value: Column) -> Column:
    """A column that is no field of the record: where all of a row is published, it is not."""
    return value.alias(name, metadata=_ABOUT)


def is_about(field: StructField) -> bool:
    """Whether `about` made it. It stays so under other names, as long as its value is unchanged."""
    return _ABOUT.items() <= field.metadata.items()
