from __future__ import annotations

import random

import pytest

from processor.codec.json import JsonCodec
from processor.errors import ConfigurationError
from processor.filter import compile_filter

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_integration.filter import filter_column, split_filter
from tests.spark.filter_cases import SCHEMA, filter_text, record

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

FAILFAST = {"mode": "FAILFAST"}


def verdicts(spark, filters, records, schema=SCHEMA, repartition=2):
    """What each filter says of each record, as a row of truth values for each record."""
    struct = None if schema is None else StructType.fromDDL(schema)
    rows = spark.createDataFrame([(i, text) for i, text in enumerate(records)], "i INT, value STRING")
    made = F.lit(None) if struct is None else F.from_json("value", struct, FAILFAST)
    # Read once: the plan would have the reading once for every filter.
    rows = rows.withColumn("record", made).localCheckpoint()
    columns = [filter_column(text, struct, record=F.col("record"), value=F.col("value")) for text in filters]
    found = rows.select("i", F.array(*columns).alias("found")).orderBy("i").collect()
    return [row["found"] for row in found]


def test_a_column_says_what_the_processor_says(spark) -> None:
    """Of random filters that go to the JVM whole, and of some that do not, for random records of a schema."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    records = [record(rng) for _ in range(300)]
    decoded = [JsonCodec().decode(text.encode()) for text in records]
    struct = StructType.fromDDL(SCHEMA)
    pushed, mixed = [], []
    while len(pushed) < 250:
        text = filter_text(rng)
        split = split_filter(text, struct)
        if not split.rest:
            pushed.append(text)
        elif split.pushed and len(mixed) < 3:
            mixed.append(text)
    filters = pushed + mixed
    trues = 0
    for text, row, value in zip(records, verdicts(spark, filters, records), decoded, strict=True):
        expected = [compile_filter(each).matches(value) for each in filters]
        trues += sum(expected)
        wrong = [each for each, found, right in zip(filters, row, expected, strict=True) if found is not right]
        assert not wrong, (wrong[0], text)
    assert 0.2 < trues / len(records) / len(filters) < 0.8
