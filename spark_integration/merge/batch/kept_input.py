"""Keeps the shuffled input of a merge, so that a second merge does not read the history again."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_integration.pyspark_private import rows_of_plan


def shuffled_once(records: DataFrame) -> DataFrame:
    """Return the rows of a DataFrame behind a shuffle; every query of the result reads the same shuffle files.

    The shuffle runs in this call. Its files stay on the executors' disks as long as the result is used; those of a lost
    executor are computed again from the history. PySpark has no public way to keep them: `persist` and
    `localCheckpoint` would write all rows another time.

    Args:
        records: the last step is a `repartition`.

    Returns:
        The rows; under Spark Connect the argument, whose queries each read the history.
    """
    return rows_of_plan(records)
