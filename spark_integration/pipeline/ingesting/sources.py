"""The input of an ingest job: files, a Kafka topic or a table, as rows with their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, model_validator
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from processor.config.section import Properties, Section
from processor.errors import ConfigurationError
from spark_integration.pipeline.kafka_source import OFFSETS_PER_TRIGGER
from spark_integration.pipeline.places import DataPath
from spark_integration.publishing.mask import TO_JSON, text_of
from spark_integration.reading.schemas.schema import given_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT_FORMATS: Final = ("json", "csv")
_FILE_FORMATS: Final = (*_TEXT_FORMATS, "parquet", "orc", "avro")
_CORRUPT: Final = "_corrupt"
_ROW_BITS: Final = 33
"""Bits of `monotonically_increasing_id` for the number of a row in its task."""
_UNSPLIT: Final = str(1 << 40)
"""Bytes; a limit that keeps each file in a task of its own, so that the number of a row is that of its line."""

FILES_PER_TRIGGER: Final = "1000"
"""The default limit of a micro-batch, in files: each is read by a task of its own."""
_FILE_LIMITS: Final = ("maxfilespertrigger", "maxbytespertrigger")

_SPLITTING: Final = ("minpartitions", "maxrecordsperpartition")


class IngestSource(Section):
    """Section `from` of an ingest job."""

    format: str = "json"
    """`json` (one object a line), `csv`, `parquet`, `orc`, `avro`, `kafka`, or another streaming source of Spark."""
    path: DataPath | None = None
    """The directory of the files; a file counts once, when it appears, and must be complete then."""
    topic: str | None = None
    """The Kafka topic, for `kafka`; its values are JSON."""
    table: str | None = None
    """A table that Spark can stream, such as one of Delta or Iceberg."""
    columns: str | None = Field(default=None, alias="schema")
    """The columns, as DDL: `id LONG, note STRING`. JSON needs none: its messages are sent as they are."""
    header: bool = True
    """True if the first line of a CSV file has the names of the columns, which must be those of `schema`."""
    options: Properties = Field(default_factory=dict)
    """Options of Spark's source."""

    @model_validator(mode="after")
    def _is_one_source(self) -> IngestSource:
        """Check that the source is given in one way."""
        ways = [name for name in ("path", "topic", "table") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise ValueError(f"give one of path, topic and table; it has {' and '.join(ways) or 'none of them'}")
        if (self.format == "kafka") != (self.topic is not None):
            raise ValueError("format kafka reads a topic; give `format: kafka` and `topic`, or another format and path")
        if self.format == "csv" and self.columns is None:
            raise ValueError("csv needs a schema, such as schema: id LONG, note STRING")
        if bad := [name for name in self.options if name.lower() in _SPLITTING and self.format == "kafka"]:
            raise ValueError(f"option {bad[0]} would let two tasks send the records of one partition: leave it out")
        return self

    @property
    def place_kind(self) -> Literal["file", "partition", "none"]:
        """The kind of place that a row has: a line of a file, an offset of a partition, or none."""
        if self.topic is not None:
            return "partition"
        return "file" if self.format in _FILE_FORMATS and self.path is not None else "none"

    @property
    def bounded_options(self) -> dict[str, str]:
        """The options of Spark's source, with a limit for a micro-batch: the first one finds all that is there."""
        given = {name.lower() for name in self.options}
        if self.topic is not None and "maxoffsetspertrigger" not in given:
            return {"maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER, **self.options}
        if self.place_kind == "file" and not given.intersection(_FILE_LIMITS):
            return {"maxFilesPerTrigger": FILES_PER_TRIGGER, **self.options}
        return dict(self.options)

    @property
    def is_raw(self) -> bool:
        """True if the messages are JSON texts, which are sent as they are."""
        return self.columns is None and self.table is None and self.format in ("json", "kafka")


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Reads a source in two steps: the stream, and the rows of one of its micro-batches."""

    source: IngestSource
    mapping: dict[str, str]
    """SQL expressions of the fields to send, by name; empty: all columns as they are."""

    def stream(self, session: SparkSession, kafka: dict[str, str]) -> DataFrame:
        """Open the stream: the columns of the source, and those of the place.

        Args:
            session: the job's own session, whose settings for files are changed.
            kafka: options of the Kafka client.

        Raises:
            ConfigurationError: the source cannot be read.
        """
        source, bounded = self.source, self.source.bounded_options
        reader = session.readStream.options(**bounded)
        try:
            if source.table is not None:
                return reader.table(source.table)
            if source.topic is not None:
                options = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed", **kafka}
                options |= {"subscribe": source.topic, **bounded}
                rows = session.readStream.format("kafka").options(**options).load()
                place = F.concat_ws("/", "topic", "partition").alias("file")
                return rows.select("value", place, F.col("offset").alias("line"), "partition", _time("timestamp"))
            assert source.path is not None, "a source has a path, a topic or a table"
            if source.format not in _FILE_FORMATS:
                return reader.format(source.format).load(source.path)
            return self._files(session)
        except AnalysisException as error:
            raise ConfigurationError(f"from: {error.getCondition()}: {error.getMessage() or error}") from None

    def _files(self, session: SparkSession) -> DataFrame:
        source, bounded = self.source, self.source.bounded_options
        assert source.path is not None, "files have a path"
        for setting in ("maxPartitionBytes", "openCostInBytes"):
            session.conf.set(f"spark.sql.files.{setting}", _UNSPLIT)
        file = F.col("_metadata.file_path").alias("file")
        at = _time("_metadata.file_modification_time")
        if source.format in _TEXT_FORMATS:
            own = {name: text for name, text in bounded.items() if name.startswith(("max", "clean", "source"))}
            rows = session.readStream.format("text").options(**own).load(source.path)
            return rows.select(F.col("value").cast("binary").alias("value"), file, at)
        columns = source.columns or session.read.format(source.format).load(source.path).schema
        rows = session.readStream.format(source.format).schema(columns).options(**bounded).load(source.path)
        number = F.col("_metadata.row_index") if source.format == "parquet" else F.lit(None).cast("long")
        names = [F.col(_quoted(name)) for name in rows.columns]
        return rows.select(F.struct(*names).alias("row"), file, number.alias("index"), at)

    @property
    def header(self) -> str:
        """The first line of each CSV file, without spaces and quotes; empty where files have none."""
        source = self.source
        if source.format != "csv" or not source.header or source.columns is None:
            return ""
        separator = source.options.get("sep", source.options.get("delimiter", ","))
        columns = given_schema(source.columns)
        return separator.strip().join(name.replace(" ", "") for name in columns.names)

    def texts(self, batch: DataFrame) -> DataFrame:
        """Make one JSON text of each row of a micro-batch.

        Returns:
            Columns `text` (the message, binary), `raw` (the row as it came, binary), `problem` (a reason, or null),
            `file`, `line` (from 1, or the offset), `at` (milliseconds) and `partition`.
        """
        source = self.source
        if source.place_kind == "none":
            names = [F.col(_quoted(name)) for name in batch.columns]
            place = {"file": "string", "line": "long", "at": "long", "partition": "int"}
            nothing = [F.lit(None).cast(kind).alias(name) for name, kind in place.items()]
            return self._of_columns(batch.select(F.struct(*names).alias("row"), *nothing))
        if source.place_kind == "partition":
            return self._of_values(batch.withColumn("value", F.col("value").cast("binary")))
        partition = F.lit(None).cast("int").alias("partition")
        # A task reads one file from its beginning, so the number of a row in its task is that in its file.
        number = F.expr(f"(monotonically_increasing_id() & {(1 << _ROW_BITS) - 1}) + 1")
        if source.format in _TEXT_FORMATS:
            return self._of_values(batch.select("*", number.alias("line"), partition))
        line = F.coalesce(F.col("index") + 1, number).alias("line")
        return self._of_columns(batch.select("row", "file", line, "at", partition))

    def _of_values(self, rows: DataFrame) -> DataFrame:
        """Make messages of texts: as they are, or by the columns of the schema."""
        source = self.source
        keep = ("file", "line", "at", "partition")
        blank = F.trim(F.coalesce(F.col("value").cast("string"), F.lit(""))) == ""
        if source.place_kind == "file":
            rows = rows.where(~blank)
        if source.is_raw:
            no_problem = F.lit(None).cast("string").alias("problem")
            return rows.select(F.col("value").alias("text"), F.col("value").alias("raw"), no_problem, *keep)
        assert source.columns is not None, "a source without a schema is raw"
        text = F.col("value").cast("string")
        columns = f"{source.columns}, {_CORRUPT} STRING"
        options = {**source.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        row = F.from_csv(text, columns, options) if source.format == "csv" else F.from_json(text, columns, options)
        return self._of_columns(rows.select(row.alias("row"), F.col("value").alias("raw"), *keep))

    def _of_columns(self, rows: DataFrame) -> DataFrame:
        """Make messages of columns, by the mapping where there is one."""
        fields = rows.schema["row"].dataType.fieldNames()  # type: ignore[attr-defined]
        own = [name for name in fields if name != _CORRUPT]
        flat = rows.select("*", *(F.col(f"row.{_quoted(name)}").alias(name) for name in own if self.mapping))
        members = (
            [F.expr(expression).alias(name) for name, expression in self.mapping.items()]
            if self.mapping
            else [F.col(f"row.{_quoted(name)}").alias(name) for name in own]
        )
        text = text_of(members, skip_nulls=False)
        raw: Column = F.col("raw") if "raw" in rows.columns else F.to_json("row", TO_JSON).cast("binary")
        misfit = F.col(f"row.{_CORRUPT}").isNotNull() if _CORRUPT in fields else F.lit(False)
        problem = F.when(F.col("row").isNull() | misfit, F.lit("misfit"))
        return flat.select(
            text.cast("binary").alias("text"), raw.alias("raw"), problem.alias("problem"), "file", "line", "at",
            "partition",
        )  # fmt: skip


def _time(name: str) -> Column:
    return F.unix_millis(F.col(name)).alias("at")


def _quoted(name: str) -> str:
    # A dot in a plain name would mean a field inside a struct.
    return f"`{name.replace('`', '``')}`"
