"""Spark's SQL as texts: names and values, quoted so that each stands for itself.

Spark parses a text in one call of Java, and each operation on a `Column` is twenty of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError

Sql: TypeAlias = str
"""An expression of Spark's SQL; each name and value in it is quoted by `quoted` and `literal`."""

_IS_PLAIN: Final = re.compile(r"[^'\\$\0]*")
"""A text that stands for itself between quotes."""

OUT_OF_RANGE: Final = r"(?:[^\W\d_]|\^)[^\w^]*[\d,]{5}"
"""A part of a number's text: an exponent of more than four digits, in any language. Such a number fits in no decimal,
and Spark computes all of its digits before it looks: hours for `1e300000000`."""
LONGEST: Final = 1000
"""The longest text of a decimal, in characters: that of a number for Spark's parser of JSON. Java's time grows with the
square of the digits."""
TINY_NUMBER: Final = r"[:,\[\s/][+-]?[0-9.]++[eE]-[0-9]{5}"
"""A number in a text of JSON that is not zero, but so in a double."""

_VARIABLE: Final = re.compile(r"\$\{\S+?\}")


def quoted(path: Iterable[str]) -> Sql:
    """A path of column names for SQL. Without the quotes, a dot in a name would mean a field inside a struct.

    In SQL that is parsed (`expr`, `selectExpr`, a condition as a text) Spark replaces `${x}` by a setting, in quotes
    too, and has no sign against it: see `refuse_variables`.
    """
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def literal(text: str) -> Sql:
    """Any text as a literal of SQL, under each rule of a session for backslashes, quotes and `${x}`."""
    return f"'{text}'" if _IS_PLAIN.fullmatch(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"


def aliased(name: str, column: Sql) -> Sql:
    """A column under another name."""
    return f"{column} AS {quoted([name])}"


def refuse_variables(struct: StructType) -> None:
    """Refuse names in which Spark would replace a variable, as conditions and columns are texts of SQL.

    Raises:
        ConfigurationError: a field has such a name, at any depth.
    """
    if (variable := _VARIABLE.search(struct.simpleString())) is None:
        return
    session = SparkSession.getActiveSession()
    if session is None or session.conf.get("spark.sql.variable.substitute", "true") == "true":
        raise ConfigurationError(
            f"the schema has a name with {variable[0]}, which Spark's SQL takes for a setting and replaces; leave the "
            "field out, or set spark.sql.variable.substitute to false"
        )
