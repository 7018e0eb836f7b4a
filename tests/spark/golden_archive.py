"""The archive of golden records, as the writer of this checkout makes it: `python -m tests.spark.golden_archive`."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from processor import __version__
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.pipeline.jobs.archive import archive_writer
from tests.golden.golden_files import golden_topic, packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = ("orders.publish", "orders.delta")
"""The golden topics of the archive."""
CHECKPOINT: Final = "0123456789abcdef"
_ROW_DDL: Final = (
    f"key binary, value binary, headers {HEADERS_DDL}, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
"""The columns of Spark's Kafka source that the job `archive` keeps."""


def kafka_rows(session: SparkSession, version: str) -> DataFrame:
    """Return the golden topics as a micro-batch of the job `archive`."""
    rows: list[tuple[Any, ...]] = [
        (record.key, record.value, record.headers, topic, 0, record.offset,
         datetime.fromtimestamp(record.timestamp_ms / 1000, UTC), 0)
        for topic in TOPICS
        for record in golden_topic(version, topic)
    ]  # fmt: skip
    return session.createDataFrame(rows, _ROW_DDL).coalesce(1).withColumn("date", F.to_date("timestamp"))


def make_archive(session: SparkSession, directory: Path, version: str) -> None:
    """Write the archive of the golden topics."""
    archive_writer(session, str(directory), "parquet", CHECKPOINT).append(kafka_rows(session, version), 0)


def main() -> None:
    """Pack the archive of this checkout's version."""
    from spark_integration import spark_session

    session = spark_session("golden", **{"spark.master": "local[1]", "spark.sql.session.timeZone": "UTC"})
    with tempfile.TemporaryDirectory(prefix="sowstream-golden-") as name:
        make_archive(session, Path(name), __version__)
        with tarfile.open(packed(__version__, "archive"), "w:gz") as archive:
            for path in sorted(Path(name).rglob("*")):
                if not path.name.endswith(".crc"):
                    archive.add(path, path.relative_to(name), recursive=False)
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
