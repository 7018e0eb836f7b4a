"""Fails a query at a row that cannot be used, and turns the failure into an error for the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError

_MARK: Final = "sowstream: "
# Spark appends a place in its own code.
_SENTENCE: Final = re.compile(rf"\[USER_RAISED_EXCEPTION\] {_MARK}(.*?) SQLSTATE: P0001", re.DOTALL)


def failing(*sentence: Column) -> Column:
    """A column that fails the query with a sentence; null parts become `null`."""
    parts = (F.coalesce(part.cast("string"), F.lit("null")) for part in sentence)
    return F.raise_error(F.concat(F.lit(_MARK), *parts))


@contextmanager
def row_errors() -> Iterator[None]:
    """Raise the sentence of `failing` as an error.

    Raises:
        ConfigurationError: `failing` has failed the query; with its sentence.
    """
    try:
        yield
    except Exception as error:
        # The class of the error depends on its way to the driver.
        match = _SENTENCE.search(str(error))
        if match is None:
            raise
        raise ConfigurationError(match[1]) from None
