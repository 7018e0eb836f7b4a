"""The sequences of publishers in a batch merge: its tasks, rounds and check treat each one as a worker does."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from processor.errors import RecordRejected
from processor.record import Record
from processor.wire.publisher_mark import PublisherMark
from spark_integration.foundation.arrow_records import OUTGOING, OUTGOING_DDL, headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.deduplicate import marks_after, repeats, summaries, wrong_clients
from spark_integration.merge.batch.fold import Fold
from spark_integration.merge.batch.runs.compiled_runs import DENIAL, IS_REPEAT
from spark_integration.merge.batch.runs.sequence_log import (
    DENIED,
    NUMBER_BYTES,
    RAISES,
    REPLAY,
    SEQUENCE,
    TREATED,
    UNCHECKED,
    Block,
)
from spark_integration.merge.batch.sequence_blocks import Settling
from tests.spark.merge_histories import NAME, NOW_MS, random_history, task_input, worker

JUMP_MAX = 20


class Entry(NamedTuple):
    offset: int
    name: bytes
    number: int
    is_rejected: bool
    is_replay: bool
    is_unchecked: bool


def _history(rng: random.Random) -> list[Entry]:
    """Sequences of two clients over three blocks: mostly growing, in some histories with a few that are not."""
    steps = rng.choice([[1], [1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, -2], [1, 1, 1, 1, 1, 30], [1, 2, -1, -3]])
    numbers = {b"sequence//ann": 0, b"sequence//ben": 0}
    rare = rng.choice([0, 0.2, 0.5])
    entries = []
    for offset in sorted(rng.sample(range(3 << 20), 60)):
        name = rng.choice(sorted(numbers))
        numbers[name] = max(0, numbers[name] + rng.choice(steps))
        is_unchecked = rng.random() < rare / 2
        is_rejected = is_unchecked or rng.random() < rare
        entries.append(Entry(offset, name, numbers[name], is_rejected, rng.random() < rare / 4, is_unchecked))
    return entries


def _treated(history: list[Entry], marks: dict[bytes, bytes]) -> tuple[dict[int, int], dict[bytes, tuple[bytes, int]]]:
    """The flag of each record that a worker drops or denies by its offset, and the marks with their offsets."""
    deduplicators = {name: PublisherMark(text) for name, text in marks.items()}
    ends = {name: (text, -1) for name, text in marks.items()}
    treated = {}
    for entry in history:
        mark = deduplicators.setdefault(entry.name, PublisherMark())
        before, is_taken = mark.text(), not entry.is_rejected
        try:
            if entry.is_replay and not entry.is_unchecked:
                if entry.number > mark.highest:
                    mark.check_jump(entry.number, JUMP_MAX)
            elif not entry.is_unchecked and mark.is_duplicate(entry.number, JUMP_MAX):
                treated[entry.offset] = TREATED
                continue
        except RecordRejected:
            treated[entry.offset], is_taken = DENIED, False
        if is_taken:
            mark.accept(entry.number)
        else:
            mark.refuse(entry.number)
        if mark.text() != before:
            ends[entry.name] = mark.text(), entry.offset
    return treated, ends


def _rows(rng: random.Random, partition: int, history: list[Entry], treated: dict[int, int]):
    """The rows of two tasks, in which each has some of the entries."""
    blocks: dict[tuple[int, bytes, int], list[Entry]] = {}
    for entry in history:
        blocks.setdefault((rng.randrange(2), entry.name, entry.offset >> 20), []).append(entry)
    for (_, name, number), entries in blocks.items():
        kinds = [
            UNCHECKED
            if entry.is_unchecked
            else (RAISES * (not entry.is_rejected and treated.get(entry.offset) != DENIED))
            | treated.get(entry.offset, 0)
            | REPLAY * entry.is_replay
            for entry in entries
        ]
        columns = [np.array([getattr(entry, field) for entry in entries], np.int64) for field in ("offset", "number")]
        block = Block(name, number, *columns, np.array(kinds, np.uint8))
        yield SEQUENCE, partition, block.key(), block.value(), []


@pytest.mark.spark
@pytest.mark.random
def test_the_check_is_a_loop_over_the_records(spark, random_seed) -> None:
    """The check finds the histories in which others than a worker's were dropped or denied, and which these are."""
    rng = random.Random(random_seed)
    rows, marks, wrong, expected, ends = [], [], set(), set(), {}
    for partition in range(60):
        history = _history(rng)
        before = {b"sequence//ann": rng.choice([b"0", b"3", b"4 refused=1+1"])} if rng.random() < 0.3 else {}
        marks += [(partition, name, text) for name, text in before.items()]
        treated, ends[partition] = _treated(history, before)
        seen = dict(treated)
        if rng.random() < 0.5 and (others := [one for one in history if not one.is_unchecked and not one.is_rejected]):
            other = rng.choice(others).offset
            if seen.pop(other, None) is None:
                seen[other] = TREATED
            wrong.add(partition)
        else:
            expected |= {(partition, offset, kind == TREATED) for offset, kind in treated.items()}
        rows += _rows(rng, partition, history, seen)
    frame = spark.createDataFrame(rows, OUTGOING_DDL)
    before = spark.createDataFrame(marks, "partition int, name binary, mark binary")
    summed = summaries(frame, before, JUMP_MAX)
    assert {row.partition for row in wrong_clients(summed).select("partition").collect()} == wrong
    found = {(row.partition, row.offset, row.denial is None) for row in repeats(frame, before, JUMP_MAX).collect()}
    assert {place for place in found if place[0] not in wrong} == expected
    after = {(row.partition, bytes(row.name)): (bytes(row.mark), row.offset) for row in marks_after(summed).collect()}
    assert {place: end for place, end in after.items() if place[0] not in wrong} == {
        (partition, name): end for partition in ends if partition not in wrong for name, end in ends[partition].items()
    }


_ROUNDS_JUMP_MAX = 12


def _input(history: list[Record], places: dict[int, str | None] | None) -> pa.RecordBatch:
    """The input of a task, with the records that a worker drops or denies marked."""
    records, columns = task_input(history)
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
    topic = {"partitions": 1, "sequence_jump_max": _ROUNDS_JUMP_MAX, "dlq_max_ratio": 1}
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
