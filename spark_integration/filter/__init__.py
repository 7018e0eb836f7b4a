"""Our filter language as a Spark Column: what Spark SQL says just as well in the JVM, the rest by the processor."""

from spark_integration.filter.column import Split, filter_column, split_filter

__all__ = ["Split", "filter_column", "split_filter"]
