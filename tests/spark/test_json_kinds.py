"""A value of JSON is itself in its column, or its record is a misfit: the same for every way to read a topic on Spark.

The table is of values as they stand in the bytes of a record. The session has another time zone than UTC, and tells
names apart by case.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_integration import read_changes, read_sow, stream_sow
from spark_integration.read.mask import FROM_JSON
from spark_integration.read.misfit import is_misfit, with_record
from spark_integration.read.schemas.json_columns import _TINY, is_several
from spark_integration.read.source.data_source import register_source
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker]

MISFIT: Final = object()
NOON: Final = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
LOCAL: Final = dt.datetime(2026, 11, 1, 12, 0, 0, 500000)  # noqa: DTZ001 - without a zone
SCHEMA: Final = """n LONG, N STRING, tiny TINYINT, small SMALLINT, whole INT, long LONG, flag BOOLEAN, float FLOAT,
double DOUBLE, money DECIMAL(10,2), wide DECIMAL(38,18), text STRING, at TIMESTAMP, day DATE, local TIMESTAMP_NTZ,
bytes BINARY, one STRUCT<a: LONG, b: DOUBLE>, many ARRAY<STRUCT<a: LONG, d: DECIMAL(5,1)>>, by MAP<STRING, DOUBLE>"""

KINDS: Final[list[tuple[str, str, Any]]] = [
    ("tiny", "-128", -128), ("tiny", "200", MISFIT), ("small", "40000", MISFIT), ("whole", "2147483648", MISFIT),
    ("whole", "1.0", MISFIT), ("whole", '"1"', MISFIT), ("whole", "null", None),
    ("long", "9007199254740993", 2**53 + 1), ("long", "-9223372036854775808", -(2**63)),
    ("long", "9223372036854775808", MISFIT), ("long", "true", MISFIT), ("long", '""', MISFIT),
    ("flag", "true", True), ("flag", "1", MISFIT), ("flag", '"true"', MISFIT), ("float", "0.5", 0.5),
    ("float", "16777216", 16777216.0), ("float", "16777217", MISFIT), ("float", "1e39", MISFIT),
    ("double", "0.1", 0.1), ("double", "-7", -7.0), ("double", "9007199254740992", 2.0**53),
    ("double", "9007199254740993", MISFIT), ("double", "1e300", 1e300), ("double", "1e400", MISFIT),
    ("double", "-1e400", MISFIT), ("double", "4611686018427387904", 2.0**62), ("double", '"Infinity"', math.inf),
    ("double", '"1.5"', MISFIT), ("double", "18446744073709551616", MISFIT), ("money", "10.25", Decimal("10.25")),
    ("money", "10.250", Decimal("10.25")), ("money", "10.255", MISFIT), ("money", "123456789.00", MISFIT),
    ("money", "1e400", MISFIT), ("money", "1e-40", MISFIT), ("money", "1e-1", Decimal("0.1")),
    ("money", '"10.25"', Decimal("10.25")), ("money", '"ten"', MISFIT), ("money", '"1,5"', MISFIT),
    ("money", r'"1\u002c5"', MISFIT), ("money", r'"\u0031,5"', MISFIT), ("money", '"1e1,0"', MISFIT),
    ("money", '"1,234.50"', MISFIT), ("money", '"1_0"', MISFIT), ("money", '" 1"', MISFIT), ("text", '"1,5"', "1,5"),
    ("money", "1e7", Decimal(10**7)), ("money", "1e300000000", MISFIT), ("money", '"-1e+300000000"', MISFIT),
    ("money", "1e-300000000", MISFIT), ("money", '"1e-300000000"', MISFIT), ("money", r'"1\u0065300000000"', MISFIT),
    ("money", '"1e3,0,0,0,0,0,0,0,0"', MISFIT), ("money", f'"{"1" * 200_000}"', MISFIT),
    ("money", r'"1e\u0663\u0660\u0660\u0660\u0660\u0660"', MISFIT),
    ("money", '"1e\u0663\u0660\u0660\u0660\u0660\u0660"', MISFIT), ("wide", "1e300000000", MISFIT),
    ("double", "1e300000000", MISFIT),
    ("text", '"7e12345"', "7e12345"), ("many", '[{"a":1},{"d":1e300000000}]', MISFIT),
    ("many", '[{"d":"1e-300000000"}]', MISFIT),
    ("wide", "0.123456789012345678", Decimal("0.123456789012345678")), ("wide", "1.1234567890123456789", MISFIT),
    ("wide", "12345678901234567890", Decimal(12345678901234567890)), ("text", '"é\\n"', "é\n"),
    ("text", "7", "7"), ("text", "true", "true"), ("text", '{"a": [1, "x", null]}', '{"a":[1,"x",null]}'),
    ("text", '"2026-11-01T12:00:00.123456789Z"', "2026-11-01T12:00:00.123456789Z"),
    ("at", '"2026-11-01T12:00:00Z"', NOON), ("at", '"2026-11-01T14:00:00+02:00"', NOON),
    ("at", '"2026-11-01 12:00:00"', NOON),
    ("at", '"2026-11-01T12:00:00.000001Z"', NOON + dt.timedelta(microseconds=1)),
    ("at", '"2026-11-01"', NOON - dt.timedelta(hours=12)),
    ("at", '"0999-12-31T00:00:00Z"', dt.datetime(999, 12, 31, tzinfo=dt.UTC)), ("at", "1793534400", NOON),
    ("at", "1793534400000", MISFIT), ("at", "1.5", MISFIT), ("at", '"12:00:00"', MISFIT),
    ("at", '" 12:30"', MISFIT), ("at", r'"\t12:30"', MISFIT), ("at", r'"\u00312:30"', MISFIT), ("at", '"T12"', MISFIT),
    ("at", '"2026-02-30T00:00:00Z"', MISFIT), ("at", '"18000-01-01T00:00:00Z"', MISFIT), ("at", '"noon"', MISFIT),
    ("day", '"2026-11-01"', NOON.date()), ("day", "20000", MISFIT), ("day", '"2026-02-30"', MISFIT),
    ("day", '"20000"', MISFIT), ("local", '"2026-11-01T12:00:00.5"', LOCAL),
    ("local", '"2026-11-01T12:00:00Z"', MISFIT), ("bytes", '"aGk="', b"hi"), ("bytes", '"?"', MISFIT),
    ("bytes", "7", MISFIT), ("one", "null", None), ("one", "{}", {"a": None, "b": None}),
    ("one", '{"a":null,"x":1}', {"a": None, "b": None}),
    ("one", '{"a":9007199254740993,"b":0.5}', {"a": 2**53 + 1, "b": 0.5}), ("one", '{"b":1e400}', MISFIT),
    ("one", '{"A":1}', {"a": None, "b": None}), ("one", "[1]", MISFIT), ("one", '{"a":"1"}', MISFIT),
    ("one", '""', MISFIT), ("many", "[]", []),
    ("many", '[{"a":1},null,{"d":1.5}]', [{"a": 1, "d": None}, None, {"a": None, "d": Decimal("1.5")}]),
    ("many", '[{"d":1.55}]', MISFIT), ("many", '[{"d":"1,5"}]', MISFIT),
    ("many", '{"a":1}', MISFIT), ("many", "[1]", MISFIT),
    ("by", '{"x":1.5,"y":null}', {"x": 1.5, "y": None}), ("by", '{"x":1e400}', MISFIT), ("by", "[]", MISFIT),
    ("N", '"capital"', "capital"), ("missing", "1", None),
]  # fmt: skip
"""Each with a column, a value as it stands in a record, and the value of the column."""

TEXTS: Final = ['{"n":1} x', '{"n":1}{"n":2}', "[1]", "[{}]", '{"n":1', "", "7"]
"""Messages that are no record."""

ZEROS: Final = ",".join(["0.0"] * 1000)
ANY_ESCAPE: Final = {"allowBackslashEscapingAnyCharacter": "true"}
LENIENT: Final[list[tuple[str, dict[str, str], bool]]] = [
    ('{"px":"1.50","vol":NaN,"path":"C:\\\\2024"}', {}, False), (r"{'px':1.5,'re':'\\.csv'}", {}, False),
    ('{"px":1.5,"vol":NaN,"hash":"1e12345ab"}', {}, False), ('{"px":1,"px":1.5,"hash":"a5e12345"}', {}, False),
    (f'{{"px":1.5,"vol":-Infinity,"all":[{ZEROS}]}}', {}, False),
    (f'{{"px":1.5,"vol":NaN,"x":[{ZEROS}],"text":"1e12345"}}', {}, True),
    (f'{{"px":1.5,"all":[{ZEROS}],"text":"1e12345"}}', {}, False),
    (r'{"px":1.5,"vol":NaN,"x":"\u00dc\u4e2d\2024"}', ANY_ESCAPE, False),
    ('{"px":"1,5","vol":NaN,"id":123456,"at":"2026-11-01T12:00:00"}', {"locale": "de"}, False),
    ('{"px":1e300000000,"vol":NaN}', {}, True), ('{"px":1e300000000,"px":1}', {}, True),
    ('{"px":1e300000000x', {}, True),
    ("{'px':'1e300000000','px':1}", {}, True), (r'{"px":"1\u0065300000000","px":1}', {}, True),
    (r'{"px":"1e\u0663\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660"}', {}, True),
    ('{"px":"' + r"\u0031" * 200_000 + '","px":1}', {}, True), (f'{{"px":{"1" * 200_000},"px":1}}', {}, True),
    (r'{"px":"\1\e\3\0\0\0\0\0\0\0\0","px":1}', ANY_ESCAPE, True),
    ('{"px":"1E300000000","px":"1"}', {"locale": "de"}, True),
    ('{"px":"1e3,0,0,0,0,0,0,0,0"}', {"locale": "en-US"}, True),
]  # fmt: skip
"""Texts that Spark's `from_json` reads where its variant does not, with options, and whether a number is too long."""

Reader = Callable[[SparkSession, History, str], DataFrame]


@pytest.fixture
def strange_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of another zone, which tells names apart by case."""
    other = {"spark.sql.session.timeZone": "America/Los_Angeles", "spark.sql.caseSensitive": "true"}
    for name, text in other.items():
        spark.conf.set(name, text)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.unset("spark.sql.caseSensitive")


def by_format(spark: SparkSession, topic: History, on_misfit: str) -> DataFrame:
    """The table by the data source."""
    register_source(spark)
    options = {"topic": topic.name, "schema": SCHEMA, "onMisfit": on_misfit, **topic.options}
    return spark.read.format("sow").options(**options).load()


def by_stream(spark: SparkSession, topic: History, on_misfit: str) -> DataFrame:
    """The rows that a stream has written to memory."""
    options = topic.options | {"startingOffsets": "earliest"}
    rows = stream_sow(spark, topic.name, SCHEMA, options=options, on_misfit=on_misfit)
    # What a query does not need is left out of its plan; a row of metadata alone must fail as well.
    rows = rows if on_misfit == "column" else rows.select("_sow.offset")
    query = rows.writeStream.format("memory").queryName("kinds").trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.table("kinds")


READERS: Final[dict[str, Reader]] = {
    "read_sow": lambda spark, topic, on_misfit: read_sow(
        spark, topic.name, SCHEMA, options=topic.options, on_misfit=on_misfit
    ),
    "format('sow')": by_format,
    "stream_sow": by_stream,
    "read_changes": lambda spark, topic, on_misfit: read_changes(
        spark, topic.name, SCHEMA, options=topic.options, images="post", on_misfit=on_misfit
    ),
}


@pytest.mark.long
def test_one_object_with_a_long_text_is_one(spark) -> None:
    """A text of a megabyte is gone through once, and on no stack: neither a long string, nor one without an end."""
    long = 500_000
    texts = [f'{{"a": "{"x" * long}"}}', f'{{"a": "{"}{" * long}"}}', '{"a": 1} {"a": 2}', '{"a": "' + r"\"" * long]
    rows = spark.createDataFrame([(text,) for text in texts], "text STRING").selectExpr(is_several("text")).collect()
    assert [row[0] for row in rows] == [False, False, True, True]


def test_a_number_that_is_nearly_zero_is_found_in_one_pass(spark) -> None:
    """Digits in a row are gone through once; those of a number that a decimal has as zero are found at its begin."""
    texts = ["1" * 200_000, "-0.00012e-20", "12e-20", "12e+20", "0.0e-20"]
    rows = spark.createDataFrame([(text,) for text in texts], "text STRING").selectExpr(f"text RLIKE {_TINY}").collect()
    assert [row[0] for row in rows] == [False, True, True, False, False]


def test_a_text_that_spark_reads_is_a_misfit_only_with_a_long_number_in_it(spark) -> None:
    """Names that occur twice may hide a number with a long exponent; without one, a lenient text of JSON is read."""
    struct = StructType.fromDDL("px DECIMAL(10,2), all ARRAY<DECIMAL(5,1)>")
    wrong = []
    for text, options, is_too_long in LENIENT:
        rows = spark.createDataFrame([(text.encode(),)], "value BINARY")
        [row] = with_record(rows, struct, options=FROM_JSON | options).selectExpr(is_misfit(), "__inexact").collect()
        if row[0] != is_too_long:
            wrong.append((text[:80], row[1]))
    assert wrong == []


def test_a_value_is_itself_or_a_misfit_however_it_is_read(strange_session, bootstrap, unique) -> None:
    """Four ways to read give each value of the table as it is in the record; a misfit's reason names its field."""
    topic = History(unique, bootstrap)
    topic.create("sow")
    records = [f'{{"n":{n},"{column}":{text}}}' for n, (column, text, _) in enumerate(KINDS)] + TEXTS
    topic.write("sow", *((str(n), text) for n, text in enumerate(records)))
    expected = {
        n: f"/{column}" if value is MISFIT else {"n": n} | ({} if column == "missing" else {column: value})
        for n, (column, _, value) in enumerate(KINDS)
    }
    expected |= dict.fromkeys(range(len(KINDS), len(records)), "no record")
    for name, reader in READERS.items():
        rows = {
            row["_sow"]["offset"]: _shown(row.asDict(recursive=True))
            for row in reader(strange_session, topic, "column").collect()
        }
        assert rows.keys() == expected.keys(), name
        wrong = {records[n]: (shown, expected[n]) for n, shown in rows.items() if not _is(shown, expected[n])}
        assert wrong == {}, f"{name}: records, what it shows and what they have"


def _shown(row: dict[str, Any]) -> dict[str, Any] | str:
    """The fields of a row that are not null; the reason of a misfit."""
    about = row.pop("_sow")
    if about["misfit"] is not None:
        return str(about["misfit"]["reason"])
    if isinstance(row["at"], dt.datetime):
        # PySpark gives an instant in the zone of the process.
        row["at"] = row["at"].astimezone(dt.UTC)
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


def _is(shown: dict[str, Any] | str, expected: dict[str, Any] | str) -> bool:
    if isinstance(shown, str) or isinstance(expected, str):
        return isinstance(shown, str) and isinstance(expected, str) and (expected == "no record" or expected in shown)
    return shown == dict.fromkeys(shown) | expected


def test_a_misfit_fails_a_query_that_reads_no_field_of_it(strange_session, bootstrap, unique) -> None:
    """Counts and metadata alone fail as well, in every way to read; the error names the place and the field."""
    topic = History(unique, bootstrap)
    topic.create("sow", 2)
    topic.write("sow", ("1", '{"n":1}'))
    topic.write("sow", ("x", '{"n":1,"money":1e400}'), partition=1)
    place = rf"{topic.name}\.sow, partition 1, offset 0, (sow_)?key '?x'?: .*/money "
    for name, reader in READERS.items():
        with pytest.raises(Exception, match=place):
            _look(name, reader(strange_session, topic, "fail"))


def _look(name: str, rows: DataFrame) -> None:
    """A query without a field."""
    rows.select("_sow.offset").collect() if name == "read_changes" else rows.count()
