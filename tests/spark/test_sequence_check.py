from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.merge.arrow_records import OUTGOING_DDL
from spark_integration.merge.batch.sequences.sequence_check import marks_after, repeats, summaries, wrong_blocks
from spark_integration.merge.batch.sequences.sequence_log import RAISES, REPLAY, SEQUENCE, TREATED, Block

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


class Entry(NamedTuple):
    offset: int
    name: bytes
    number: int
    is_rejected: bool
    is_replay: bool


def _history(rng: random.Random) -> list[Entry]:
    """Sequences of two clients over three blocks: mostly growing, in some histories with a few that are not."""
    steps = rng.choice([[1], [1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, -2]])
    numbers = {b"sequence//ann": 0, b"sequence//ben": 0}
    rare = rng.choice([0, 0.2])
    entries = []
    for offset in sorted(rng.sample(range(3 << 20), 60)):
        name = rng.choice(sorted(numbers))
        numbers[name] = max(0, numbers[name] + rng.choice(steps))
        entries.append(Entry(offset, name, numbers[name], rng.random() < rare, rng.random() < rare))
    return entries


def _duplicates(history: list[Entry], marks: dict[bytes, int]) -> tuple[set[int], dict[bytes, tuple[int, int]]]:
    """The offsets of the duplicates, and the marks at the end with their offsets, record by record."""
    highest = {name: (number, -1) for name, number in marks.items()}
    duplicates = set()
    for entry in history:
        high = highest.get(entry.name, (-1, -1))[0]
        if entry.number <= high and not entry.is_replay:
            duplicates.add(entry.offset)
        elif not entry.is_rejected and entry.number > high:
            highest[entry.name] = entry.number, entry.offset
    return duplicates, highest


def _rows(rng: random.Random, partition: int, history: list[Entry], treated: set[int]):
    """The rows of two tasks, in which each has some of the entries."""
    blocks: dict[tuple[int, bytes, int], list[Entry]] = {}
    for entry in history:
        blocks.setdefault((rng.randrange(2), entry.name, entry.offset >> 20), []).append(entry)
    for (_, name, number), entries in blocks.items():
        kinds = [
            RAISES * (not entry.is_rejected) | TREATED * (entry.offset in treated) | REPLAY * entry.is_replay
            for entry in entries
        ]
        columns = [np.array([getattr(entry, field) for entry in entries], np.int64) for field in ("offset", "number")]
        block = Block(name, number, *columns, np.array(kinds, np.uint8))
        yield SEQUENCE, partition, block.key(), block.value(), []


@pytest.mark.random
def test_the_check_is_a_loop_over_the_records(spark, random_seed) -> None:
    """The check finds the histories in which others than the duplicates were treated as such, and their duplicates."""
    rng = random.Random(random_seed)
    rows, marks, wrong, expected, ends = [], [], set(), set(), {}
    for partition in range(60):
        history = _history(rng)
        before = {b"sequence//ann": rng.randrange(4)} if rng.random() < 0.3 else {}
        marks += [(partition, name, number) for name, number in before.items()]
        duplicates, ends[partition] = _duplicates(history, before)
        treated = set(duplicates)
        if rng.random() < 0.5:
            treated ^= {rng.choice(history).offset}
            wrong.add(partition)
        expected |= {(partition, offset) for offset in duplicates}
        rows += _rows(rng, partition, history, treated)
    frame = spark.createDataFrame(rows, OUTGOING_DDL)
    summed = summaries(frame, spark.createDataFrame(marks, "partition int, name binary, sequence bigint"))
    assert {row.partition for row in wrong_blocks(summed).select("partition").collect()} == wrong
    assert {(row.partition, row.offset) for row in repeats(frame, summed).collect()} == expected
    after = {(row.partition, bytes(row.name)): (row.sequence, row.offset) for row in marks_after(summed).collect()}
    assert after == {(partition, name): end for partition in ends for name, end in ends[partition].items()}
