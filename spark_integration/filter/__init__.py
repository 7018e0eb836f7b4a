"""Our filter language as a Spark Column: what Spark SQL says just as well in the JVM, the rest by the processor."""

from spark_integration.filter.column import filter_column

__all__ = ["filter_column"]
