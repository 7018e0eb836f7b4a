"""Evaluates a filter in Python, on the executors, with the processor's own decoder and its own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf

from processor.filter.syntax_tree import Node


def evaluated(text: str, tree: Node, value: Column) -> Column:
    """Evaluate a filter on JSON text, to true or false; a null text counts as a record without fields.

    Args:
        text: the text of the filter, for error messages.
        tree: the filter to evaluate, or a part of it.
        value: the records as JSON text.
    """
    verdicts: Callable[[Column], Column] = pandas_udf(_verdicts(text, tree), "boolean")  # type: ignore[call-overload]
    return verdicts(value)


def _verdicts(text: str, tree: Node) -> Callable[[Iterator[pd.Series]], Iterator[pd.Series]]:
    def of_batches(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        # Imported here, as this runs on executors: a compiled filter cannot be pickled, so each task compiles it once.
        from processor.codec.json import JsonCodec  # noqa: PLC0415
        from processor.filter.compile import Compiler  # noqa: PLC0415
        from processor.filter.evaluation import NO_METADATA  # noqa: PLC0415

        decode, truth = JsonCodec().decode, Compiler(text).condition(tree)
        for batch in batches:
            records = (decode(record.encode()) if isinstance(record, str) else {} for record in batch)
            yield pd.Series([truth(record, NO_METADATA) is True for record in records], dtype=bool)

    return of_batches
