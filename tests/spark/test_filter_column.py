"""A filter as a column of Spark, and the parts of it that Spark's columns can express."""

from __future__ import annotations

import random

import pytest

from processor.codec.json import JsonCodec
from processor.errors import ConfigurationError, FilterError
from processor.filter import compile_filter
from processor.filter.parse import parse
from processor.filter.pattern import searcher

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JJavaError
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, FloatType, LongType, MapType, StringType, StructField, StructType

from spark_integration.filter import filter_column, split_filter
from spark_integration.filter.column import spelled
from spark_integration.filter.pattern import searching
from tests.spark.filter_cases import SCHEMA, SHARP, filter_text, record

FAILFAST = {"mode": "FAILFAST"}

CHARACTERS = ["a", "b", "A", "1", "\u0663", ".", "-", " ", "\t", "\x0b", "\n", "\r", "\u2028", "\x85", "é", "É", "𝄞"]
ATOMS = [
    *("a", "b", "1", ".", ".", r"\d", r"\w", r"\s", r"\S", r"\W", "[ab]", "[^a]", "[a-c1]", r"\.", r"\-", "é", "𝄞"),
    *(" ", "-"),
]
QUANTIFIERS = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "*?"]


def verdicts(spark, filters, records, schema=SCHEMA):
    """The results of all filters for each record, as one row of truth values for a record."""
    rows = spark.createDataFrame([(i, text) for i, text in enumerate(records)], "i INT, value STRING")
    made = F.lit(None) if schema is None else F.from_json("value", schema, FAILFAST)
    # Read once: the plan would have the reading once for every filter.
    rows = rows.withColumn("record", made).localCheckpoint()
    columns = [filter_column(text, schema, record=F.col("record"), value=F.col("value")) for text in filters]
    found = rows.select("i", F.array(*columns).alias("found")).orderBy("i").collect()
    return [row["found"] for row in found]


def agree(spark, seed: int, count: int) -> None:
    """Compare random filters in the JVM, and two that are split, with the processor for random records."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    records = [record(rng) for _ in range(300)]
    decoded = [JsonCodec().decode(text.encode()) for text in records]
    pushed = list(SHARP)
    mixed: list[str] = []
    while len(pushed) < count or len(mixed) < 2:
        text = filter_text(rng)
        split = split_filter(text, SCHEMA)
        if split.pushed and len(kept := mixed if split.rest else pushed) < (2 if split.rest else count):
            kept.append(text)
    filters = [compile_filter(text) for text in pushed + mixed]
    trues = 0
    for text, row, value in zip(records, verdicts(spark, pushed + mixed, records), decoded, strict=True):
        expected = [each.matches(value) for each in filters]
        trues += sum(expected)
        wrong = [each.text for each, found, right in zip(filters, row, expected, strict=True) if found is not right]
        assert not wrong, (wrong[0], text)
    assert 0.1 < trues / len(records) / len(filters) < 0.9


@pytest.mark.spark
@pytest.mark.long
def test_a_column_agrees_with_the_processor(spark, random_seed) -> None:
    """Random filters of numbers, texts, arrays and objects have the same results in Spark and in the processor."""
    agree(spark, random_seed, 45)


@pytest.mark.spark
@pytest.mark.long
def test_a_column_agrees_with_the_processor_on_many_filters(spark, random_seed) -> None:
    """A thousand random filters have the same results in Spark and in the processor."""
    for turn in range(5):
        agree(spark, random_seed + turn, 200)


@pytest.mark.spark
@pytest.mark.long
def test_without_schema_the_processor_evaluates_all(spark) -> None:
    """Without a schema, the processor evaluates the filter, also mixed types, functions and unknown members."""
    filters = ["UPPER(/name) = 'X' OR /n < '10'", "/nowhere/deep[1] IS NULL AND /name IS NOT NULL"]
    rows = verdicts(spark, filters, ['{"name":"x"}', '{"n":9}', '{"n":"9","nowhere":{"deep":[1,2]}}', None], None)
    assert rows == [[True, True], [True, False], [False, False], [False, False]]


@pytest.mark.spark
@pytest.mark.long
def test_only_records_that_pass_the_jvm_go_to_python(spark) -> None:
    """Operands of an AND are evaluated first in Spark, then in Python, which gets the records that pass Spark."""
    struct = StructType.fromDDL("id LONG, name STRING")
    text = "LENGTH(/name) = 1 AND /id >= 10 AND /name LIKE '^a'"
    assert split_filter(text, struct) == (("/id >= 10", "/name LIKE '^a'"), ("LENGTH(/name) = 1",))
    rows = spark.createDataFrame([('{"id":10,"name":"a"}',), ('{"id":9,"name":"a"}',)], "value STRING")
    rows = rows.withColumn("record", F.from_json("value", struct, FAILFAST))
    chosen = rows.where(filter_column(text, struct, record=F.col("record"), value=F.col("value"))).select("value")
    assert [row["value"] for row in chosen.collect()] == ['{"id":10,"name":"a"}']
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    python, jvm = plan.index("ArrowEvalPython"), plan.index("exists(array(")
    assert python < jvm, plan


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("/name = '12'", '{"name":12}', "has no text at /name"),
        ("/name = 'a'", '{"name":["a"]}', "has no text at /name"),
        ("/name IS NULL", '{"name":{"first":"a"}}', "has no text at /name"),
        ("/legs/ccy LIKE 'E'", '{"legs":[{"ccy":"USD"},{"ccy":{"E":1}}]}', "has no text at /legs/ccy"),
        ("/px > 1", '{"px":"Infinity"}', "has no finite number at /px"),
        ("/px = 0", '{"px":1e-300000000}', "number at /px has more digits than Spark can compare"),
        ("/px = 0.1", f'{{"px":0.1{"0" * 40}1}}', "number at /px has more digits than Spark can compare"),
        (
            "/px < -10.25",
            f'{{"id":1,"px" : -10.25{"0" * 40}1}}',
            "number at /px has more digits than Spark can compare",
        ),
        ("/px >= 1e-20", f'{{"px":1.{"0" * 20}1e-20}}', "number at /px has more digits than Spark can compare"),
    ],
)
def test_a_value_of_another_type_fails_the_query(spark, text, value, said) -> None:
    """A filter on a column whose value has another type in the record has no result: the query fails with the path."""
    schema = "name STRING, px DOUBLE, legs ARRAY<STRUCT<ccy: STRING>>"
    with pytest.raises((SparkRuntimeException, Py4JJavaError), match=said):
        verdicts(spark, [text], [value], StructType.fromDDL(schema))


@pytest.mark.parametrize(
    "pattern",
    [
        "^EUR",
        "SWAP$",
        ".*SWAP.*",
        "[a-z]+@x.+",
        ".+@.+",
        r"^[A-Z]{3}-\d{4,6}$",
        r"\.csv$",
        "^a.*b",
        r"\d+$",
        "[A-F0-9]{32}",
    ],
)
def test_the_patterns_of_every_day_are_searched_for_in_the_jvm(pattern) -> None:
    """A prefix, a part, an end, a code and a line are translated: Java needs little more than one look at the text."""
    assert searching(pattern) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        *("a.*b", "a.*$", "ba*$", "^a.*b.*c", "^.*a.*$", ".*a.*b", "xa{2,}b"),
        *("^" + "a?" * 18 + "a" * 18, "[a-z]{1,20}" * 5 + "@", "[ab]{50}" * 5, "^" + "a{0,9}" * 9 + "b"),
    ],
)
def test_a_pattern_on_which_java_would_go_back_and_forth_is_left_to_re2(pattern) -> None:
    """A pattern that makes Java read a text from each of its characters again, or in many ways, is not translated."""
    assert searching(pattern) is None


@pytest.mark.spark
@pytest.mark.long
def test_java_finds_the_same_texts_as_re2(spark, random_seed) -> None:
    """Every translated pattern matches the same texts in Java as in RE2, also line ends and letters beyond ASCII."""
    rng = random.Random(random_seed)
    texts = ["".join(rng.choices(CHARACTERS, k=rng.randrange(7))) for _ in range(300)]
    known: dict[str, object] = {}
    while len(known) < 80:
        pattern = _pattern(rng)
        try:
            compile_filter(f"/a LIKE r'{pattern}'")
        except FilterError:
            continue
        if (search := searching(pattern)) is not None:
            known[pattern] = search
    assert sum(any(special in pattern for special in ".[\\*+") for pattern in known) > 40
    rows = spark.createDataFrame([(i, text) for i, text in enumerate(texts)], "i INT, t STRING")
    columns = F.array(*[search(F.col("t")) for search in known.values()])
    for row in rows.select("t", columns.alias("found")).collect():
        right = [searcher(pattern)(row["t"]) for pattern in known]
        wrong = [pattern for pattern, one, other in zip(known, row["found"], right, strict=True) if one is not other]
        assert not wrong, (wrong[0], row["t"])


def _pattern(rng):
    pieces = [rng.choice(ATOMS) + rng.choice(QUANTIFIERS) for _ in range(rng.randint(1, 3))]
    return rng.choice(["", "^"]) + "".join(pieces) + rng.choice(["", "$"])


STRUCT = StructType(
    [
        *SCHEMA.fields,
        StructField("f", FloatType()),
        StructField("day", DateType()),
        StructField("m", MapType(StringType(), LongType())),
        StructField("low", StringType("UTF8_LCASE")),
        StructField("x", LongType()),
        StructField("X", LongType()),
    ]
)


@pytest.mark.parametrize(
    "text",
    [
        "/id = 1",
        "1.5 < /qty",
        "/px BETWEEN 0.1 AND 10",
        "/amount IN (1, '2', 10.25)",
        "/name >= 'a'",
        "/'a b' LIKE r'^\\w+\\s.'",
        "/to/zip NOT BEGINS WITH ('a', 'b')",
        "/tags = 'a'",
        "/legs[1]/ccy != 'EUR'",
        "/legs/notes ENDS WITH ('x')",
        "/to IS NULL",
        "/open",
        "/qty * 2 - /id > 10.5",
        "/id < /to/n",
        "/name = /to/zip",
        "NOT (/open OR /id IS NULL)",
        "/name = NULL",
    ],
)
def test_goes_to_the_jvm(text) -> None:
    """Spark evaluates a part of a filter where a typed column has exactly the values of the record."""
    assert split_filter(text, STRUCT).rest == ()


@pytest.mark.parametrize(
    "text",
    [
        "/name = 1",
        "/name < /id",
        "/nowhere = 1",
        "/ID = 1",
        "/name/x IS NULL",
        "/legs/n[0] = 1",
        "/px = 0.12345678901234567890123456789012345678901",
        "/f = 1",
        "/day > '2024-01-01'",
        "/m/a = 1",
        "/low = 'a'",
        "/x = 1",
        "LENGTH(/name) = 1",
        "UNIX_TIMESTAMP() > 0",
        "/qty / 2 = 1",
        "/id * /id * /id > 1",
        "/px + 1 > 2",
        "/name LIKE '(a+)+b'",
        "/name LIKE '.*a.*b'",
        "/name LIKE '(?i)a'",
        "(/id = 1) = TRUE",
        "/name",
        "/id = 1 OR LENGTH(/name) = 1",
    ],
)
def test_stays_with_the_processor(text) -> None:
    """The processor evaluates a part of a filter where Spark SQL may differ or the schema is incomplete."""
    assert split_filter(text, STRUCT).pushed == ()


def test_no_schema_leaves_all_to_the_processor() -> None:
    """Without a schema, the processor evaluates every operand of a filter."""
    assert split_filter("/a = 1 AND /b = 2", None) == ((), ("/a = 1", "/b = 2"))


def test_a_part_is_shown_as_a_filter(random_seed) -> None:
    """The text of a part is a filter with the same meaning as the part."""
    rng = random.Random(random_seed)
    for _ in range(500):
        tree = parse(filter_text(rng))
        assert parse(spelled(tree)) == tree


@pytest.mark.parametrize("name", ["SOW_KEY", "LAST_UPDATED", "MESSAGE_SIZE", "TOPIC_NAME", "CORRELATION_ID"])
def test_functions_of_metadata_are_refused(name) -> None:
    """A function of a record's metadata is refused with its name and an alternative."""
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) cannot be asked here: .*sow_key and timestamp"):
        split_filter(f"/a = 1 AND NOT (LENGTH({name}()) > 1)", None)


def test_an_invalid_filter_is_refused_with_its_place() -> None:
    """An invalid filter is refused, and the error shows the place of the mistake."""
    with pytest.raises(FilterError, match="line 1, column 6"):
        filter_column("/a = ", None, record=None, value=None)
