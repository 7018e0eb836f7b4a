from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import RecordRejected
from processor.wire.publisher_mark import PublisherMark
from spark_integration.foundation.arrow_records import OUTGOING_DDL
from spark_integration.merge.batch.deduplicate import marks_after, repeats, summaries, wrong_clients
from spark_integration.merge.batch.runs.sequence_log import DENIED, RAISES, REPLAY, SEQUENCE, TREATED, UNCHECKED, Block

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


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
