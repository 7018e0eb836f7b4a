"""Reads only the partitions of the keys that conditions of a query name, where Spark passes them (4.1 and later)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.types import IntegralType, StringType

from spark_integration.reading.metadata_columns import SOW
from spark_integration.source.reader import SowSourceReader

_KEY: Final = "sow_key"


class PushingReader(SowSourceReader):
    """A reader whose keys Spark may narrow.

    Spark calls `pushFilters` from version 4.1 on where `spark.sql.python.filterPushdown.enabled` is true, and refuses a
    reader that has it elsewhere; so it is a class of its own.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
        """Narrow the keys by the conditions that name some, and leave every condition to Spark as well.

        Args:
            filters: the conditions, all of which hold: objects of `pyspark.sql.datasource`, such as `EqualTo`.
        """
        for condition in filters:
            keys = self._keys_of(condition)
            if keys is not None:
                self._keys = keys if self._keys is None else self._keys & keys
            yield condition

    def _keys_of(self, condition: Any) -> frozenset[str] | None:
        """The only keys that a condition can hold for; None if it names none."""
        # By name, as PySpark 4.0 does not have the classes.
        match type(condition).__name__:
            case "EqualTo":
                values = [condition.value]
            case "In":
                values = list(condition.value)
            case _:
                return None
        kind = self._kind_of(tuple(condition.attribute))
        if kind is None or not all(type(value) is kind for value in values):
            return None
        return frozenset(map(str, values))

    def _kind_of(self, path: tuple[str, ...]) -> type | None:
        """The type of the values of a column whose text is the key; None for other columns."""
        places = {"struct": (SOW, _KEY), "flat": (_KEY,)}
        if path == places.get(self._options.metadata):
            return str
        # Without the topic's settings its key fields are not certain.
        if not self._options.has_config or self._options.settings.topic.key_fields != (f"/{'/'.join(path)}",):
            return None
        data_type = next((field.dataType for field in self._schema.fields if (field.name,) == path), None)
        if isinstance(data_type, IntegralType):
            return int
        return str if isinstance(data_type, StringType) else None
