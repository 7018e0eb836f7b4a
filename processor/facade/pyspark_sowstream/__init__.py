"""Makes the format `sow` known to every session: Spark looks for `DefaultSource` in packages named `pyspark_*`."""

from spark_integration.read.source.data_source import SowSource as DefaultSource

__all__ = ["DefaultSource"]
