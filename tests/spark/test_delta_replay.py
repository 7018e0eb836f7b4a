"""Deltas in Spark: they replay to the table, and their changed paths are those of the workers' diff."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.spark.merge_histories import random_history

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.delta_replay import DIFFERENT, KeyReplay
from spark_integration.read.decode import changed, changed_paths

SETTINGS = topic_settings("orders", {"key": ["/id"]})
CODEC = SETTINGS.codec()


def written(seed: int, count: int = 200):
    """The last SOW record and the deltas of each key, from one worker, with their offsets."""
    driver = ProcessorTestDriver(DeltaMerge, SETTINGS.topic, name="orders", topic=SETTINGS.topic, partition=0, now_ms=1)
    for record in random_history(random.Random(seed), count):
        driver.now_ms = record.timestamp_ms
        driver.pipe_input(record.key, record.value, record.headers)
    driver.commit()
    records, deltas = {}, {}
    for record in driver.read_output("sow"):
        records[record.key] = Record(record.key, record.value, record.headers, 0, 0)
    for offset, delta in enumerate(driver.read_output("delta")):
        deltas.setdefault(delta.key, []).append(Record(delta.key, delta.value, delta.headers, offset, 0))
    return records, deltas


def verdicts(record, deltas, *, is_complete=True, certain=1_000_000) -> list[str]:
    """The kinds of the rows for one key."""
    replay = KeyReplay(CODEC, 0, b"k", is_complete=is_complete)
    if record is not None:
        replay.expect(record)
    for delta in deltas:
        replay.apply(delta, is_certain=delta.offset < certain)
    return [row[0] for row in replay.rows()]


@pytest.mark.parametrize("seed", range(8))
def test_the_deltas_of_a_worker_give_its_records(seed: int) -> None:
    """For random histories, the replay of each key is its SOW record, also where the last deltas may be newer."""
    records, deltas = written(seed)
    for key, record in records.items():
        wanted = [] if record.value is None else ["same"]
        assert verdicts(record, deltas[key]) == wanted
        assert verdicts(record, deltas[key], certain=deltas[key][len(deltas[key]) // 2].offset) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_each_kind_of_damage_is_found(seed: int) -> None:
    """A lost delta, another value, an old record, a record that is gone and one too many are each a difference."""
    records, deltas = written(seed)
    seen: Counter[str] = Counter()
    for key, record in records.items():
        of_key, is_live = deltas[key], record.value is not None
        lives = [place for place, delta in enumerate(of_key) if ("kind", b"insert") in delta.headers]
        if is_live and len(of_key) - lives[-1] > 2:
            lost = [*of_key[: lives[-1] + 1], *of_key[lives[-1] + 2 :]]
            assert "gap" in verdicts(record, lost)
            seen["gap"] += 1
        if is_live:
            changed = record._replace(value=b'{"id":0,"other":1}')
            assert verdicts(changed, of_key) == ["value"]
            assert verdicts(record._replace(headers=[("version", b"999")]), of_key) == ["version"]
            assert verdicts(None, of_key) == ["missing"]
            assert verdicts(record, []) == ["surplus"]
            assert verdicts(record, [], is_complete=False) == ["unseen"]
            seen["value"] += 1
    assert seen["gap"]
    assert seen["value"]


def test_repeats_of_a_micro_batch_change_nothing() -> None:
    """Deltas that Spark has written twice, from anywhere in a life or over its beginning, are no difference."""
    for seed in range(8):
        records, deltas = written(seed)
        for key, record in records.items():
            of_key = deltas[key]
            for begin in range(len(of_key)):
                repeated = [*of_key, *of_key[begin:]]
                assert not set(verdicts(record, repeated)) & set(DIFFERENT), (seed, key, begin)


def test_a_key_whose_first_deltas_are_gone_is_compared_by_version() -> None:
    """Without its first deltas a key is partial where the version fits, and a difference where it does not."""
    records, deltas = written(3)
    key = next(key for key, record in records.items() if record.value is not None and len(deltas[key]) > 3)
    lives = [place for place, delta in enumerate(deltas[key]) if ("kind", b"insert") in delta.headers]
    rest = deltas[key][lives[-1] + 1 :]
    assert rest
    assert verdicts(records[key], rest, is_complete=False) == ["partial"]
    older = records[key]._replace(headers=[("version", b"1")])
    assert verdicts(older, rest, is_complete=False) == ["version"]


NAMES = ["id", "a/b", "~", "~1", "", 'q"q', "\\", "ø", "\n", "{"]
LEAVES = [None, 0, "", "{", '{"a":1}', [], [{"x": 1}], {}, True, 1.5]


def document(rng: random.Random, depth: int) -> dict:
    """An object of random names and values, some of them objects."""
    return {
        name: document(rng, depth - 1) if depth and rng.random() < 0.3 else rng.choice(LEAVES)
        for name in rng.sample(NAMES, rng.randrange(5))
    }


@pytest.mark.spark
def test_paths_are_those_of_the_parsed_delta(spark, random_seed) -> None:
    """Flat deltas, whose paths the JVM lists, and all others have the paths of the parsed text, in its order."""
    rng = random.Random(random_seed)
    documents = [document(rng, rng.randrange(3)) for _ in range(400)]
    texts = [json.dumps(one, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])) for one in documents]
    rows = spark.createDataFrame([(text,) for text in [*texts, None]], "text STRING")
    found = {row["text"]: row["paths"] for row in rows.select("text", changed(F.col("text")).alias("paths")).collect()}
    assert found == {text: changed_paths(text) for text in [*texts, None]}


@pytest.mark.spark
@pytest.mark.parametrize("text", ['{"a":', "{a}", '{"a":{"b":', "[1", "x"])
def test_a_text_that_is_no_json_fails_the_query(spark, text) -> None:
    """A delta that is no JSON fails the query: without paths it would look empty."""
    rows = spark.createDataFrame([(text,)], "text STRING")
    with pytest.raises(PySparkException, match=r"not JSON|JSONDecodeError"):
        rows.select(changed(F.col("text"))).collect()
