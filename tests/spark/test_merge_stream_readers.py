"""Readers of the SOW and delta topics of a streaming merge whose micro-batches fail and are repeated."""

from __future__ import annotations

import json
import random

import pytest

from processor.client import Client
from processor.merge import apply_delta
from processor.record import Record
from tests.client.family import END, PARTITIONS, Family
from tests.waiting import PATIENCE_S

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'sowstream[spark]'")

from processor.kafka.partitioner import partition_for
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.streaming.processor import MergeProcessor
from tests.spark.micro_batches import MicroBatches

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

NOW_MS = 1_700_000_000_000


def _written(rng, name, *, deletes):
    """The output for the topics: each micro-batch up to some record, repeated from its first one until complete."""
    settings = topic_settings(name, {"partitions": PARTITIONS})
    query = MicroBatches(lambda: MergeProcessor(settings), rng)
    offsets = [0] * PARTITIONS
    for batch in range(12):
        inputs: dict[int, list[Record]] = {}
        for _ in range(15):
            key = b"%d" % rng.randrange(6)
            partition = partition_for(key, PARTITIONS)
            value = {"id": int(key), rng.choice("ab"): rng.choice([1, 2, "x", {"c": 1}, {"d": rng.randrange(9)}])}
            data = None if deletes and rng.random() < 0.15 else json.dumps(value).encode()
            headers = [("command", b"publish")] if rng.random() < 0.2 else None
            inputs.setdefault(partition, []).append(Record(key, data, headers, offsets[partition], NOW_MS))
            offsets[partition] += 1
        told = query.run(inputs, NOW_MS + batch)
        for _ in range(rng.randrange(3)):
            yield told[: rng.randrange(len(told))]
        yield told


def _write(family, written):
    """Write as Spark's sink does: in order, and without rollback."""
    sow = {}
    for told in written:
        with family.transaction():
            for topic, partition, (key, value, headers) in told:
                if topic.endswith(".mark"):
                    continue  # Each partition has its own marks, and these readers read none.
                assert partition == partition_for(key, PARTITIONS)
                text = {name: said.decode() for name, said in headers}
                family.write(topic, key.decode(), None if value is None else json.loads(value), **text)
                if topic.endswith(".sow"):
                    sow[key.decode()] = value
    return {key: json.loads(value) for key, value in sow.items() if value is not None}


@pytest.mark.parametrize("seed", range(1))
def test_a_view_ends_right(bootstrap, unique, seed) -> None:
    """A view goes back with repeated records, and is correct after the last one, deletes included."""
    print("seed", seed)
    family = Family(bootstrap, unique)
    with Client("test", family.config) as client, client.view(family.name) as view:
        expected = _write(family, _written(random.Random(seed), unique, deletes=True))
        family.finish()
        ends = {f"{END}{partition}" for partition in range(PARTITIONS)}
        while not ends <= view.keys():
            assert view.refresh(PATIENCE_S), "nothing came"
        assert {key: record for key, record in view.items() if key not in ends} == expected


@pytest.mark.parametrize("seed", range(1))
def test_deltas_that_come_again_add_up_to_the_record(bootstrap, unique, seed) -> None:
    """A subscriber's deltas, applied in their order with repeated ones, give the SOW records in the end."""
    print("seed", seed)
    family = Family(bootstrap, unique)
    records: dict[str, object] = {}
    with Client("test", family.config) as client:
        subscription = client.delta_subscribe(family.name)
        expected = _write(family, _written(random.Random(seed), unique, deletes=False))
        for message in family.rest(subscription):
            key = message.sow_key
            old = records.get(key)
            records[key] = apply_delta(old, message.data, message.removed) if message.delta and old else message.data
    assert records == expected
