"""Random histories of one partition, and the records of a worker for them, with which merges on Spark are compared."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.record import Record
from processor.testing import ProcessorTestDriver
from processor.wire.publisher_mark import PUBLISHERS, mark_text
from spark_integration.foundation.arrow_records import headers_column

if TYPE_CHECKING:
    from spark_integration.foundation.settings import TopicSettings

NOW_MS = 1_700_000_000_000
NAME = "orders"


class Expected(NamedTuple):
    """The records of a worker that reads every record at the time of its publish."""

    sow: dict[bytes, tuple[bytes | None, Any]]
    """Value and headers of the last SOW record of each key."""
    deltas: dict[bytes, list[tuple[bytes | None, Any]]]
    """Value and headers of each delta, in order."""
    dlq: list[tuple[bytes | None, bytes | None, Any]]
    """Dead letters, sorted by their text."""
    marks: dict[bytes, bytes]
    """The text of each publisher's mark at the end."""
    events: dict[str, int]
    """The worker's counters of events."""


def worker(settings: TopicSettings, partition: int, history: list[Record], as_of_ms: int) -> Expected:
    """The records of a worker for the history of a partition."""
    driver = ProcessorTestDriver(
        DeltaMerge,
        settings.topic,
        name=settings.name,
        topic=settings.topic,
        partition=partition,
        now_ms=NOW_MS,
        behind_ms=0,
    )
    for record in history:
        driver.now_ms = record.timestamp_ms
        while len(driver.input) < record.offset:  # What a transaction's marker takes.
            driver.pipe_input("none", None)
        driver.pipe_input(record.key, record.value, record.headers)
    driver.advance_time(max(0, as_of_ms - driver.now_ms))
    driver.commit()
    deltas = defaultdict(list)
    for delta in driver.read_output("delta"):
        deltas[delta.key].append((delta.value, delta.headers or []))
    return Expected(
        {record.key: (record.value, record.headers or []) for record in driver.read_output("sow")},
        dict(deltas),
        sorted(((r.key, r.value, r.headers or []) for r in driver.read_output("dlq")), key=repr),
        {
            r.key: mark_text(r.key, r.value, r.headers)
            for r in driver.read_output("mark")
            if r.key.startswith(PUBLISHERS)
        },
        dict(driver.events),
    )


def random_history(
    rng: random.Random, count: int, *, keys: int = 6, clients: str = "", rubbish: float = 0.06, conditional: float = 0.0
):
    """Commands of every kind for a few keys, seconds apart; the part `conditional` expects a version of the record."""
    time_ms, sequences = NOW_MS, dict.fromkeys(clients, 0)
    history = []
    for offset in range(count):
        time_ms += rng.choice([0, 1, 40, 900, 1000, 3000])
        key = rng.randrange(keys)
        headers = _headers(rng, sequences)
        if conditional and rng.random() < conditional:
            headers.append(("expect_version", rng.choice([b"0", b"1", b"2", b"3", b"5", b"-1", b"x"])))
        value = _rubbish(rng, key) if rng.random() < rubbish else _body(rng, key, offset)
        history.append(Record(b"%d" % key, value, headers or None, offset, time_ms))
    return history


def _headers(rng: random.Random, sequences: dict[str, int]) -> list[tuple[str, bytes]]:
    headers = []
    if rng.random() < 0.4:
        commands = ["publish", "publish", "sow_delete", "delta_publish", "delta_publish", "nonsense"]
        headers.append(("command", rng.choice(commands).encode()))
    if sequences and rng.random() < 0.8:
        client = rng.choice(sorted(sequences))
        sequences[client] = max(0, sequences[client] + rng.choice([1, 1, 1, 1, 2, 0, -1, -3]))
        headers += [("client", client.encode()), ("sequence", b"%d" % sequences[client])]
        if rng.random() < 0.05:
            headers.append(("replay_of", b"x"))
        if rng.random() < 0.1:
            headers.append(("source", f"{NAME}.publish/{rng.randrange(3)}/7".encode()))
    if rng.random() < 0.1:
        headers.append(("expiration", rng.choice([b"2", b"0.5", b"0", b"-1"])))
    if rng.random() < 0.1:
        headers.append(("remove", rng.choice([b'["/a"]', b'["/a/x","/note"]', b'["/id"]', b"no"])))
    if rng.random() < 0.1:
        headers += [("correlation_id", rng.choice([b"abc", b"=="])), ("trace", b"t")]
    return headers


def _body(rng: random.Random, key: int, number: int) -> bytes | None:
    if rng.random() < 0.05:
        return None
    change = rng.choice(
        [
            {"n": number},
            {"a": {"x": rng.choice([1, 1.0, True, "1", None])}},
            {"a": rng.choice([1, {}, {"y": {"w": number, "z": None}}, [number]])},
            {"tags": [number, {"t": None}], "big": 2**70 + number},
            {"note": rng.choice(["", None, "é", {"deep": {"er": number}}]), "n": None},
            {"n": number, "ts": number + rng.randrange(-4, 4), "qty": rng.randrange(5), "price": 1.5},
            {},
        ]
    )
    text = json.dumps({"id": key, **change}, ensure_ascii=rng.random() < 0.5)
    return text.encode()


def _rubbish(rng: random.Random, key: int) -> bytes:
    other = b'{"id":%d,"n":1}' % (key + 1)
    return rng.choice([b"{", b"[1]", b"", other, b'{"id":%d,"n":"%s"}' % (key, b"x" * 3000), b'{"a":' * 200])


def task_input(history: list[Record]) -> tuple[list[Record], dict[str, pa.Array]]:
    """A partition's records in the order of a Spark task, by key and offset, and their columns."""
    records = sorted(history, key=lambda record: (record.key, record.offset))
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": headers_column([record.headers or [] for record in records]),
        "partition": pa.array([0] * len(records), pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
    }
    return records, columns
