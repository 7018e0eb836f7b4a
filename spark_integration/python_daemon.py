"""Starts Spark's Python workers with the modules of a merge imported: `spark.python.daemon.module`.

Spark's own daemon forks a worker for each task that finds no idle one, and each imports pyarrow, pandas and this
package: 0.5 s of processor time. Here the daemon imports them once, before it forks.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark.daemon import manager

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "spark_integration.merge.batch.fold",
    "spark_integration.merge.streaming.processor",
    "processor.codec.json",
)
"""The modules that are imported before a worker is forked. None of them starts a thread."""


def main() -> None:
    """Import, and serve Spark until it closes the standard input."""
    for module in MODULES:
        import_module(module)
    gc.freeze()  # The workers share these objects' memory as long as the collector does not write to it.
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
