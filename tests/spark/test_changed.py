"""Spark lists the paths of a delta as the workers' diff does."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.read.decode import changed, changed_paths

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = ["id", "a/b", "~", "~1", "", 'q"q', "\\", "ø", "\n", "{"]
LEAVES = [None, 0, "", "{", '{"a":1}', [], [{"x": 1}], {}, True, 1.5]


def document(rng: random.Random, depth: int) -> dict:
    """An object of random names and values, some of them objects."""
    return {
        name: document(rng, depth - 1) if depth and rng.random() < 0.3 else rng.choice(LEAVES)
        for name in rng.sample(NAMES, rng.randrange(5))
    }


def test_paths_are_those_of_the_parsed_delta(spark, random_seed) -> None:
    """Flat deltas, whose paths the JVM lists, and all others have the paths of the parsed text, in its order."""
    rng = random.Random(random_seed)
    documents = [document(rng, rng.randrange(3)) for _ in range(400)]
    texts = [json.dumps(one, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])) for one in documents]
    rows = spark.createDataFrame([(text,) for text in [*texts, None]], "text STRING")
    found = {row["text"]: row["paths"] for row in rows.select("text", changed(F.col("text")).alias("paths")).collect()}
    assert found == {text: changed_paths(text) for text in [*texts, None]}


@pytest.mark.parametrize("text", ['{"a":', "{a}", '{"a":{"b":', "[1", "x"])
def test_a_text_that_is_no_json_fails_the_query(spark, text) -> None:
    """A delta that is no JSON fails the query: without paths it would look empty."""
    rows = spark.createDataFrame([(text,)], "text STRING")
    with pytest.raises(PySparkException, match=r"not JSON|JSONDecodeError"):
        rows.select(changed(F.col("text"))).collect()
