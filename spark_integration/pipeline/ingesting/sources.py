"""The input of an ingest job: files, a Kafka topic or a table, as rows with their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, model_validator
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
)

from processor.config.section import Properties, Section
from processor.errors import ConfigurationError
from processor.values import pointer
from spark_integration.foundation.pyspark_private import is_repeatable
from spark_integration.foundation.sql import quoted
from spark_integration.pipeline.ingesting.csv_rows import FLOAT_MAX, MISFIT, ROWS_DDL, CsvRows
from spark_integration.pipeline.ingesting.kafka_source import OFFSETS_PER_TRIGGER
from spark_integration.pipeline.ingesting.reader_options import (
    check_options,
    dialect_of,
    file_options,
    option,
    spark_options,
)
from spark_integration.pipeline.job import DataPath, InputMissing
from spark_integration.publish.columns import order_of
from spark_integration.read.mask import TO_JSON, text_of
from spark_integration.read.misfit import INEXACT, RECORD, with_record
from spark_integration.read.schemas.schema import given_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT_FORMATS: Final = ("json", "csv")
_FILE_FORMATS: Final = (*_TEXT_FORMATS, "parquet", "orc", "avro")
SOURCE_FORMATS: Final = (*_FILE_FORMATS, "kafka", "delta", "iceberg", "text", "rate", "rate-micro-batch", "socket")
"""The formats of this module, of Spark itself, and of its lakes; packages bring others."""
_LARGEST: Final[dict[type[DataType], float]] = {DoubleType: 1.7976931348623157e308, FloatType: FLOAT_MAX}
_TIME_FORMATS: Final[dict[type[DataType], str]] = {
    DateType: "dateFormat", TimestampType: "timestampFormat", TimestampNTZType: "timestampNTZFormat",
}  # fmt: skip
"""The option with the format of each type of times."""
_CORRUPT: Final = "_corrupt"
_REST: Final = "__sowstream"
"""The other columns, as one, so that expressions of a mapping see those of the source alone."""
_JSON: Final = "json"
_IS_ONE: Final = "is_one"
_FLAT: Final = r"^\s*[{][^{}]*+[}]\s*$"
"""An object without another one in it, and with nothing around it."""
_BYTE_ORDER_MARK: Final = "\ufeff"
_ROW_BITS: Final = 33
"""Bits of `monotonically_increasing_id` for the number of a row in its task."""
_UNSPLIT: Final = str(1 << 40)
"""Bytes; a limit that keeps each file in a task of its own, so that the number of a row is that of its line."""

FILES_PER_TRIGGER: Final = "1000"
"""The default limit of a micro-batch, in files: each is read by a task of its own."""
FILE_AGE_MAX: Final = "36500d"
"""The default of Spark's `maxFileAge`. Its own one, a week, leaves files that appear later and are older out, without a
word; the log of its source keeps the names of all files in either case.
"""
_FILE_LIMITS: Final = ("maxfilespertrigger", "maxbytespertrigger")


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
    order_by: tuple[str, ...] = ()
    """The columns that order the rows of a key, lowest first, for a table or another source without places."""
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
        if self.order_by and self.place_kind != "none":
            raise ValueError("rows of files and of Kafka have the order of their lines and offsets; leave order_by out")
        if self.table is None:
            check_options(self.format, self.options, has_schema=self.columns is not None)
        return self

    @property
    def place_kind(self) -> Literal["file", "partition", "none"]:
        """The kind of place that a row has: a line of a file, an offset of a partition, or none."""
        if self.topic is not None:
            return "partition"
        return "file" if self.format in _FILE_FORMATS and self.path is not None else "none"

    @property
    def bounded_options(self) -> dict[str, str]:
        """The options of Spark's source, with a limit for a micro-batch: the first one finds all that is there.

        Files of any age count.
        """
        given = {name.lower() for name in self.options}
        if self.topic is not None and "maxoffsetspertrigger" not in given:
            return {"maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER, **self.options}
        if self.place_kind == "file":
            limit = {} if given.intersection(_FILE_LIMITS) else {"maxFilesPerTrigger": FILES_PER_TRIGGER}
            age = {} if "maxfileage" in given else {"maxFileAge": FILE_AGE_MAX}
            return {**limit, **age, **self.options}
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
    key: tuple[str, ...] = ()
    """The JSON Pointers of the key fields, whose expressions give each row the same key in every run."""

    def stream(self, session: SparkSession, kafka: dict[str, str]) -> DataFrame:
        """Open the stream: the columns of the source, and those of the place.

        Args:
            session: the job's own session, whose settings for files are changed.
            kafka: options of the Kafka client.

        Raises:
            InputMissing: the source does not exist yet.
            ConfigurationError: the source cannot be read.
        """
        source, bounded = self.source, self.source.bounded_options
        if source.columns is not None:
            names = given_schema(source.columns).names
            if twice := [name for name in names if names.count(name) > 1 or name == _CORRUPT]:
                raise ConfigurationError(f"from.schema: {twice[0]!r} cannot be the name of a column, or is that of two")
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
            name = f"table {source.table}" if source.path is None else source.path
            if error.getCondition() in ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND"):
                raise InputMissing(f"from: there is no {name} yet") from None
            if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
                raise InputMissing(
                    f"from: {name} has no {source.format} file yet, whose columns could be taken; with from.schema "
                    "the job need not wait",
                    is_empty=True,
                ) from None
            raise ConfigurationError(f"from: {error.getCondition()}: {error.getMessage() or error}") from None

    def _files(self, session: SparkSession) -> DataFrame:
        source, bounded = self.source, self.source.bounded_options
        assert source.path is not None, "files have a path"
        for setting in ("maxPartitionBytes", "openCostInBytes"):
            session.conf.set(f"spark.sql.files.{setting}", _UNSPLIT)
        file = F.col("_metadata.file_path").alias("file")
        at = _time("_metadata.file_modification_time")
        if source.format in _TEXT_FORMATS:
            own = file_options(bounded)
            if (separator := option(bounded, "lineSep") or ("\n" if source.format == "csv" else None)) is not None:
                own["lineSep"] = separator
            rows = session.readStream.format("text").options(**own).load(source.path)
            return rows.select(F.col("value").cast("binary").alias("value"), file, at)
        columns = (
            source.columns or session.read.format(source.format).options(**source.options).load(source.path).schema
        )
        rows = session.readStream.format(source.format).schema(columns).options(**bounded).load(source.path)
        number = F.col("_metadata.row_index") if source.format == "parquet" else F.lit(None).cast("long")
        names = [F.col(quoted([name])) for name in rows.columns]
        return rows.select(F.struct(*names).alias("row"), file, number.alias("index"), at)

    def texts(self, batch: DataFrame) -> DataFrame:
        """Make one JSON text of each row of a micro-batch.

        Returns:
            Columns `text` (the message, binary), `raw` (the row as it came, binary), `problem` (a reason, or null),
            `detail` (of the reason, or null), `file`, `line` (from 1, or the offset), `at` (milliseconds) and
            `partition`; of a source whose rows have none of these places also `place`, which orders the rows of a key.

        Raises:
            ConfigurationError: the rows have no column of `order_by`, or its values have no order; or the expression of
                a key field is random or reads the clock.
        """
        source = self.source
        if source.place_kind == "none":
            names = [F.col(quoted([name])) for name in batch.columns]
            place = {"file": "string", "line": "long", "at": "long", "partition": "int"}
            nothing = [F.lit(None).cast(kind).alias(name) for name, kind in place.items()]
            order = order_of(batch, source.order_by).alias("place")
            return self._of_columns(batch.select(F.struct(*names).alias("row"), *nothing, order))
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
        if source.format == "csv":
            return self._of_csv(rows)
        keep = ("file", "line", "at", "partition")
        if source.place_kind == "file":
            rows = rows.where(F.trim(F.coalesce(F.col("value").cast("string"), F.lit(""))) != "")
        nothing = F.lit(None).cast("string")
        if source.is_raw:
            columns = [F.col("value").alias(name) for name in ("text", "raw")]
            return rows.select(*columns, nothing.alias("problem"), nothing.alias("detail"), *keep)
        assert source.columns is not None, "values that are not sent as they are have a schema"
        # What is no UTF-8 would be read with other characters in its place.
        is_text = F.is_valid_utf8(F.col("value"))
        text = F.regexp_replace(F.col("value").cast("string"), f"^{_BYTE_ORDER_MARK}", "")
        options = spark_options(source.format, source.options)
        rows = rows.withColumn(_JSON, F.when(is_text, text))
        rows = with_record(rows, given_schema(source.columns), _JSON, options, mark=_CORRUPT)
        # A parser reads nothing behind a value: it finds the mark only if the text is one. It skips the text itself.
        mark = F.xxhash64(_JSON)
        marked = F.concat(F.lit('{"row":'), _JSON, F.lit(',"mark":'), mark.cast("string"), F.lit("}"))
        is_one = F.col(_JSON).rlike(_FLAT) | F.from_json(marked, "mark LONG", options).getField("mark").eqNullSafe(mark)
        # Computed once for both columns.
        rows = rows.withColumn(_IS_ONE, F.when(F.spark_partition_id() >= 0, is_one))
        changed = F.coalesce(F.size(INEXACT) > 0, F.lit(False))
        is_misfit = changed | ~F.col(_IS_ONE)
        problem = F.when(~is_text, F.lit("undecodable")).when(is_misfit, F.lit(MISFIT)).alias("problem")
        reason = F.when(changed & ~F.array_contains(INEXACT, ""), F.array_join(INEXACT, ", "))
        several = F.when(is_misfit, F.coalesce(reason, F.lit("not one JSON object")))
        detail = F.when(~is_text, F.lit("not UTF-8")).otherwise(several).alias("detail")
        row, raw = F.col(RECORD).alias("row"), F.col("value").alias("raw")
        return self._of_columns(rows.select(row, raw, problem, detail, *keep))

    def _of_csv(self, lines: DataFrame) -> DataFrame:
        """Make messages of the lines of CSV files."""
        source = self.source
        assert source.columns is not None, "CSV has a schema"
        fields = given_schema(source.columns).fields
        names, kinds = [field.name for field in fields], [field.dataType for field in fields]
        decimals = [(place, kind.scale) for place, kind in enumerate(kinds) if isinstance(kind, DecimalType)]
        doubles = [(place, _LARGEST[type(kind)]) for place, kind in enumerate(kinds) if type(kind) in _LARGEST]
        times = [
            (place, isinstance(kind, DateType))
            for place, kind in enumerate(kinds)
            if type(kind) in _TIME_FORMATS and option(source.options, _TIME_FORMATS[type(kind)]) is None
        ]
        dialect = dialect_of(
            source.options, names, has_header=source.header, decimals=decimals, doubles=doubles, times=times
        )
        rows = lines.mapInArrow(CsvRows(dialect), ROWS_DDL)
        spelling = {"sep": dialect.separator, "quote": dialect.quote, "escape": dialect.quote, "multiLine": "true"}
        options = spark_options("csv", source.options) | spelling
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        row = F.from_csv(F.col("text").cast("string"), f"{source.columns}, {_CORRUPT} STRING", options)
        places = ("problem", "detail", "file", "line", "at", "partition")
        return self._of_columns(rows.select(row.alias("row"), "raw", *places))

    def _of_columns(self, rows: DataFrame) -> DataFrame:
        """Make messages of columns, by the mapping where there is one."""
        fields = rows.schema["row"].dataType.fieldNames()  # type: ignore[attr-defined]
        own = [F.col(f"row.{quoted([name])}").alias(name) for name in fields if name != _CORRUPT]
        raw: Column = F.col("raw") if "raw" in rows.columns else F.to_json("row", TO_JSON).cast("binary")
        misfit = F.col(f"row.{_CORRUPT}").isNotNull() if _CORRUPT in fields else F.lit(False)
        has_problem = "problem" in rows.columns
        detail = F.col("detail") if has_problem else F.lit(None).cast("string")
        problem = F.when(F.col("row").isNull() | misfit, F.lit(MISFIT))
        problem = F.coalesce("problem", problem) if has_problem else problem
        places = [name for name in ("file", "line", "at", "partition", "place") if name in rows.columns]
        rest = F.struct(raw.alias("raw"), problem.alias("problem"), detail.alias("detail"), *places).alias(_REST)
        if self.mapping:
            flat = rows.select(rest, *own)
            self._refuse_changing_keys(flat)
            members = [F.expr(expression).alias(name) for name, expression in self.mapping.items()]
        else:
            flat, members = rows.select(rest, "row"), own
        return flat.select(text_of(members, skip_nulls=False).cast("binary").alias("text"), f"{_REST}.*")

    def _refuse_changing_keys(self, rows: DataFrame) -> None:
        """Refuse a key that a repeated micro-batch would not have: its rows would be sent as others, or be dropped."""
        empty = rows.sparkSession.createDataFrame([], rows.schema)
        for name in dict.fromkeys(pointer.names(field)[0] for field in self.key):
            expression = self.mapping.get(name)
            if expression is not None and not is_repeatable(empty.select(F.expr(expression))):
                raise ConfigurationError(
                    f"mapping.{name}: {expression!r} gives a row another value when the job is started again, and the "
                    "key is made of it: rows would be lost and others sent twice; make it of the row's columns, such "
                    "as sha2(concat_ws('|', a, b), 256)"
                )


def _time(name: str) -> Column:
    return F.unix_millis(F.col(name)).alias("at")
