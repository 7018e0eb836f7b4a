"""The rounds of a batch merge without Spark: its tasks and its check treat each sequence as a worker does."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from processor.record import Record
from spark_integration.foundation.arrow_records import OUTGOING, headers_column, headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.fold import Fold
from spark_integration.merge.batch.runs.compiled_runs import DENIAL, IS_REPEAT
from spark_integration.merge.batch.runs.sequence_log import NUMBER_BYTES, SEQUENCE
from spark_integration.merge.batch.sequence_blocks import Settling
from tests.spark.merge_histories import NAME, NOW_MS, random_history, worker

JUMP_MAX = 12


def _input(history: list[Record], places: dict[int, str | None] | None) -> pa.RecordBatch:
    """The input of a task, with the records that a worker drops or denies marked."""
    records = sorted(history, key=lambda record: (record.key, record.offset))
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": headers_column([record.headers or [] for record in records]),
        "partition": pa.array([0] * len(records), pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
    }
    if places is not None:
        denials = [places.get(record.offset) for record in records]
        is_repeat = [record.offset in places and places[record.offset] is None for record in records]
        columns |= {IS_REPEAT: pa.array(is_repeat, pa.bool_()), DENIAL: pa.array(denials, pa.string())}
    return pa.RecordBatch.from_pydict(columns)


def _undenied(places: dict[int, str | None]) -> set[tuple[int, str | None]]:
    return {(offset, denial) for offset, denial in places.items() if denial is None}


def _merged(history: list[Record], topic) -> tuple[dict, list, dict, int]:
    """SOW records, dead letters and marks after as many rounds as it takes, and their number."""
    places = None
    settling = Settling(topic["sequence_jump_max"])
    for number in range(1, 20):
        rows = pa.Table.from_batches(
            Fold(topic_settings(NAME, topic), NOW_MS * 2, False)([_input(history, places)]), OUTGOING
        )
        blocks = [row for row in rows.to_pylist() if row["topic"] == SEQUENCE]
        blocks.sort(key=lambda row: (row["key"][NUMBER_BYTES:], row["key"]))
        checked = pa.RecordBatch.from_pylist(
            [{name: row[name] for name in ("topic", "partition", "key", "value")} for row in blocks],
            pa.schema([OUTGOING.field(name) for name in ("topic", "partition", "key", "value")]),
        )
        clients = [row for batch in settling.summarise([checked]) for row in batch.to_pylist()]
        found = [row for batch in settling.find_repeats([checked]) for row in batch.to_pylist()]
        former, places = places or {}, {row["offset"]: row["denial"] for row in found}
        if all(client["is_right"] for client in clients) and places.items() <= former.items() | _undenied(places):
            out = defaultdict(list)
            headers = headers_of(rows.column("headers").combine_chunks())
            for row, those in zip(rows.to_pylist(), headers, strict=True):
                out[row["topic"]].append((row["key"], row["value"], those or []))
            sow = {key: (value, those) for key, value, those in out["sow"]}
            marks = {client["name"]: client["mark"] for client in clients if client["mark"] != b"-1"}
            return sow, sorted(out["dlq"], key=repr), marks, number
    raise AssertionError("the rounds do not end")


@pytest.mark.random
def test_the_rounds_end_with_the_records_of_a_worker(random_seed) -> None:
    """Histories with refused, mended, repeated and far numbers give a worker's records, dead letters and marks."""
    rng = random.Random(random_seed)
    topic = {"partitions": 1, "sequence_jump_max": JUMP_MAX, "dlq_max_ratio": 1}
    rounds = []
    for _ in range(25):
        history = [
            _numbered_anew(rng, record)
            for record in random_history(rng, 120, clients="ab", rubbish=rng.choice([0.02, 0.3]), conditional=0.1)
        ]
        sow, dlq, marks, count = _merged(history, topic)
        expected = worker(topic_settings(NAME, topic), 0, history, NOW_MS * 2)
        assert dlq == expected.dlq
        assert sow == expected.sow
        assert marks == expected.marks
        rounds.append(count)
    print(f"{sum(rounds) / len(rounds):.1f} rounds, at most {max(rounds)}")


def _numbered_anew(rng: random.Random, record: Record) -> Record:
    """The record, rarely with a number that is too far."""
    headers = record.headers or []
    if rng.random() < 0.03 and "sequence" in dict(headers):
        headers = [(name, b"900" if name == "sequence" else value) for name, value in headers]
    return record._replace(headers=headers or None)
