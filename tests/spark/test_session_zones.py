"""One instant is one text, and one text one instant, in any time zone of the Spark session."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from spark_integration.publish.columns import key_places
from spark_integration.read.mask import FROM_JSON, ColumnPath, masked_text, pointers, text_of
from spark_integration.read.misfit import RECORD, with_record
from spark_integration.read.schemas.schema import given_schema
from spark_integration.read.source.row_writer import compile_row, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]

ZONES = ("UTC", "America/Los_Angeles", "Asia/Kolkata", "Europe/Amsterdam")
TEXTS = (
    "0001-01-01T00:00:00.000000Z", "0999-12-31T23:59:59.999999Z", "1582-10-04T12:00:00.000000Z",
    "1582-10-15T00:00:00.000000Z", "1800-01-01T00:00:00.000000Z", "1883-11-18T19:59:59.000000Z",
    "1899-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00.000000Z",
    "2026-03-08T10:00:00.000001Z", "2026-11-01T08:30:00.000000Z", "2026-11-01T09:30:00.000000Z",
    "9999-12-31T23:59:59.999999Z",
)  # fmt: skip
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROS = [(dt.datetime.fromisoformat(text) - EPOCH) // dt.timedelta(microseconds=1) for text in TEXTS]


@pytest.fixture(params=ZONES)
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """The session in a zone."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_an_instant_is_published_as_the_same_text_everywhere(session: SparkSession) -> None:
    """Columns, fields of structs, elements, masks, and rows of `format('sow')` have each instant in UTC, exactly."""
    df = session.createDataFrame([(micros,) for micros in MICROS], "us LONG").select(
        F.timestamp_micros("us").alias("at"),
        F.array(F.timestamp_micros("us")).alias("all"),
        F.struct(F.timestamp_micros("us").alias("at")).alias("in"),
        F.map_from_arrays(F.array(F.lit("at")), F.array(F.timestamp_micros("us"))).alias("by"),
        F.timestamp_micros("us").cast("timestamp").alias("x"),
    )
    columns = ("at", "all", "in", "by")
    schema = StructType([df.schema[name] for name in columns])

    def encode(batches):
        import pyarrow as pa

        convert = compile_row(schema, skip_nulls=False)
        for batch in batches:
            texts = [json.dumps(convert(row)) for row in rows_of(batch)]
            yield pa.RecordBatch.from_arrays([pa.array(texts)], names=["text"])

    texts = df.select(text_of([F.col(name) for name in columns], skip_nulls=False).alias("text"))
    places = key_places(df.select("at", F.lit("k").alias("id")), ["id"], None)
    at = df.schema["at"]
    masked = df.withColumn("id", F.lit("k")).select(
        masked_text(places, [ColumnPath(at, F.col("at"), "/at")], pointers(F.array(F.lit("at")))).alias("text")
    )
    wanted = [{"at": text, "all": [text], "in": {"at": text}, "by": {"at": text}} for text in TEXTS]
    assert [json.loads(row.text) for row in texts.collect()] == wanted
    assert [json.loads(row.text) for row in df.select(*columns).mapInArrow(encode, "text string").collect()] == wanted
    assert [json.loads(row.text) for row in masked.collect()] == [{"id": "k", "at": text} for text in TEXTS]


def test_a_text_is_read_as_the_same_instant_everywhere(session: SparkSession) -> None:
    """A text with any zone is its instant, one without a zone is in UTC, as in filters."""
    texts = [*TEXTS, *(text.removesuffix("Z") for text in TEXTS), "1800-01-01T01:00:00+01:00", "2026-11-01"]
    df = session.createDataFrame([(json.dumps({"at": text}),) for text in texts], "text STRING")
    read = with_record(df, given_schema("at TIMESTAMP"), "text")
    rows = read.select(F.unix_micros(f"{RECORD}.at").alias("us")).collect()
    day = (dt.datetime(2026, 11, 1, tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
    assert [row.us for row in rows] == [*MICROS, *MICROS, MICROS[4], day]
    assert FROM_JSON == {"timeZone": "UTC"}


def test_local_times_and_dates_keep_their_digits(session: SparkSession) -> None:
    """A timestamp without a zone and a date have no instant: their digits are published in any zone."""
    local = "1800-01-01T00:00:00.000001"
    df = session.sql(f"SELECT TIMESTAMP_NTZ '{local}' AS t, DATE '1500-02-28' AS d")
    [row] = df.select(text_of([F.col("t"), F.col("d")], skip_nulls=False).alias("text")).collect()
    assert json.loads(row.text) == {"t": local, "d": "1500-02-28"}


@pytest.mark.parametrize(
    ("ddl", "places"),
    [
        ("id LONG, Id LONG", "/id and /Id"),
        ("id LONG, a STRUCT<x: INT, X: INT>", "/a/x and /a/X"),
        ("id LONG, a ARRAY<STRUCT<x: INT, y: MAP<STRING, STRUCT<q: INT, Q: INT>>>>", "/a/y/q and /a/y/Q"),
    ],
)
def test_fields_that_differ_by_case_alone_are_refused(spark: SparkSession, ddl: str, places: str) -> None:
    """Spark would take one for the other: a schema or a DataFrame with both is refused, unless it tells them apart."""
    try:
        struct = StructType.fromDDL(ddl)
    except Exception:  # noqa: BLE001 - some versions refuse it themselves
        return
    with pytest.raises(ConfigurationError, match=f"schema: {places} differ by case alone"):
        given_schema(struct)
    with pytest.raises(ConfigurationError, match=f"the DataFrame: {places} differ by case alone"):
        key_places(spark.createDataFrame([], struct), ["id"], None)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert given_schema(struct) == struct
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_name_in_another_case_is_no_column(spark: SparkSession) -> None:
    """A column and a field are found by their very names: `ID` is not `id`, in a DataFrame and in a record."""
    df = spark.createDataFrame([('{"ID":1,"a":{"X":2}}',)], "text STRING")
    with pytest.raises(ConfigurationError, match="no column 'TEXT'; "):
        key_places(df, ["TEXT"], None)
    [row] = with_record(df, given_schema("id LONG, a STRUCT<x: LONG>"), "text").select(RECORD).collect()
    assert (row[0].id, row[0].a.x) == (None, None)
