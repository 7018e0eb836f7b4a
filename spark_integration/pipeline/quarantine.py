"""The quarantine of a job: rows that it leaves out, as JSON, each with the reason and its place.

    <path>/job=<name>/batch=<checkpoint>-<number>-<time>/…json          the rows of one micro-batch
    <path>/job=<name>/batch=<checkpoint>-<number>-<time>-<kind>/…json   those of another kind, if it has two

A repeated micro-batch replaces its own files. A checkpoint that was set back gives the number of a micro-batch to other
rows, but never its time of planning, so that it replaces none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from processor.errors import Stop
from spark_integration.foundation.pyspark_private import micro_batch
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.misfit import MISFIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark_integration.pipeline.job import JobContext

_SHOWN_MAX: Final = 3
_FIELD: Final = "(/[^ ]+) is not "
"""The first field in the reason of a record that does not fit."""


class Quarantine:
    """Writes the rows that one job leaves out."""

    def __init__(self, context: JobContext, path: str | None) -> None:
        """Set up; nothing is written.

        Args:
            context: the surroundings of the job.
            path: the directory; None: in that of the checkpoint.
        """
        self._context = context
        self.path = path or f"{context.checkpoint}/quarantine"
        """The directory."""

    def write(self, rows: DataFrame, batch_id: int | None, kind: str = "") -> None:
        """Write rows, in place of those of the same kind that the micro-batch has written before.

        Args:
            rows: columns `reason` and `detail`, those of the place, and `row`.
            batch_id: the number of the micro-batch that runs in this thread; None: before the first one.
            kind: distinguishes rows that a micro-batch writes apart; empty for its only ones.
        """
        name = f"{self._context.identity.id}-begin"
        if batch_id is not None:
            batch = micro_batch(rows.sparkSession)
            assert batch is not None, "a function of foreachBatch runs in a micro-batch"
            name = f"{self._context.identity.id}-{batch_id:010d}-{batch.planned_ms()}"
        name = f"{name}-{kind}" if kind else name
        rows.write.mode("overwrite").json(f"{self.path}/job={self._context.name}/batch={name}")

    def refuse(self, rows: DataFrame, describe: Callable[[Any], str], remedy: str) -> Stop:
        """The error of a job that has no quarantine for rows that do not fit.

        Args:
            rows: the rows.
            describe: makes the text of one.
            remedy: what to do.
        """
        shown = "; ".join(describe(row) for row in rows.limit(_SHOWN_MAX).collect())
        return Stop(f"{self._context.name}: {remedy}: {shown}")


def misfits_of(records: DataFrame) -> DataFrame:
    """The rows of `read_sow` and `stream_sow` that do not fit: `reason`, `partition`, `offset`, `key`, `at`, `row`."""
    misfit = f"{SOW}.{MISFIT}"
    return records.where(f"{misfit} IS NOT NULL").select(
        F.col(f"{misfit}.reason").alias("reason"), f"{SOW}.partition", f"{SOW}.offset",
        F.col(f"{SOW}.sow_key").alias("key"), F.col(f"{SOW}.timestamp").alias("at"),
        F.col(f"{misfit}.value").cast("string").alias("row"),
    )  # fmt: skip


def misfit_rows(misfits: DataFrame, topic: str) -> DataFrame:
    """Such rows as the quarantine has them: `misfit`, with the first field, the Kafka topic and the place."""
    return misfits.select(
        F.lit(MISFIT).alias("reason"), F.regexp_extract("reason", _FIELD, 1).alias("field"),
        F.col("reason").alias("detail"), F.lit(topic).alias("topic"), "partition", "offset", "key", "at", "row",
    )  # fmt: skip


def fitting(records: DataFrame) -> DataFrame:
    """The other rows, without the column about misfits."""
    return records.where(f"{SOW}.{MISFIT} IS NULL").withColumn(SOW, F.col(SOW).dropFields(MISFIT))
