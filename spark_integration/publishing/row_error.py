"""A row that cannot be used ends the query, with a sentence that the caller gets as an error of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError

_MARK: Final = "sowstream: "
# After it, Spark says where in its own code it was.
_SENTENCE: Final = re.compile(rf"\[USER_RAISED_EXCEPTION\] {_MARK}(.*?) SQLSTATE: P0001", re.DOTALL)


def failing(*sentence: Column) -> Column:
    """A value that is never had: the query ends with this sentence, and a null part of it as `null`."""
    parts = (F.coalesce(part.cast("string"), F.lit("null")) for part in sentence)
    return F.raise_error(F.concat(F.lit(_MARK), *parts))


@contextmanager
def row_errors() -> Iterator[None]:
    """Say what `failing` said, where it ended a query.

    Raises:
        ConfigurationError: with that sentence.
    """
    try:
        yield
    except Exception as error:
        # Spark has several classes for it, by the way on which it came to the driver.
        match = _SENTENCE.search(str(error))
        if match is None:
            raise
        raise ConfigurationError(match[1]) from None
