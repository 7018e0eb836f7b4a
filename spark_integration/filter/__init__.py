"""The filter language as a Spark Column: Spark SQL evaluates the parts that it treats alike, the processor the rest."""

from spark_integration.filter.column import Split, filter_column, split_filter

__all__ = ["Split", "filter_column", "split_filter"]
