"""The state of a streaming merge: its buckets, its requests in bulk, and how it is read without running code of it."""

from __future__ import annotations

import os
import pickle
import random
import struct
from datetime import date
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

import pandas as pd
from pyspark.serializers import CPickleSerializer

from processor.errors import Stop
from spark_integration.merge.streaming.buckets import (
    _REQUESTS_MAX,
    _SENT_BYTES_MAX,
    BUCKET_BYTES,
    PART_BYTES,
    SIZE,
    Buckets,
    BulkMap,
    bucket_of,
    entries_in,
)
from spark_integration.read.images import PreImages


class Rows:
    """A map state in memory, which counts the rows that are read and written."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.read = self.written = 0

    def get_many(self, keys):
        """The values of keys."""
        self.read += len(keys)
        return {key: self.rows.get(key) for key in keys}

    def put_many(self, changes):
        """Set or remove values."""
        self.written += len(changes)
        for key, value in changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def has_rows(self):
        """Return whether there is a value."""
        return bool(self.rows)


def _entry(rng):
    return rng.randrange(9), rng.randbytes(rng.choice([0, 10, 200, 200, 9000])), rng.randrange(3), -1, b"", 0


@pytest.mark.parametrize("seed", range(4))
def test_buckets_answer_as_a_dict(seed) -> None:
    """Entries are set, read and removed by key in any number of micro-batches, while buckets are added."""
    print("seed", seed)
    rng = random.Random(seed)
    rows, former, expected = Rows(), Rows(), {}
    for _ in range(25):
        buckets = Buckets(rows, former)
        keys = [b"%d" % rng.randrange(2000) for _ in range(rng.choice([1, 30, 400]))]
        changes = {key: rng.choice([None, _entry(rng), _entry(rng), _entry(rng)]) for key in keys}
        if rng.random() < 0.5:  # A key may be written unread.
            assert dict(buckets.get_many(keys)) == {key: expected.get(key) for key in keys}
        buckets.put_many(changes)
        expected.update(changes)
        keys = [b"%d" % number for number in range(2000)]
        assert dict(buckets.get_many(keys)) == {key: expected.get(key) for key in keys}
    names = {int(name) for name in rows.rows if name != b"size"}
    assert len(names) > 30
    sizes = [len(rows.rows[b"%d" % name]) for name in names]
    assert sum(sizes) / len(sizes) < 2 * BUCKET_BYTES


def test_number_of_rows_follows_the_keys_of_a_micro_batch() -> None:
    """A micro-batch of all keys reads and writes many keys in each row, and one of a key no more than two rows."""
    rows, former = Rows(), Rows()
    entries = {b"%d" % number: (1, b"x" * 200, 0, -1, b"", 0) for number in range(10_000)}
    Buckets(rows, former).put_many(entries)
    rows.read = rows.written = 0
    buckets = Buckets(rows, former)
    buckets.get_many(entries)
    buckets.put_many(entries)
    assert rows.read < 1000
    assert rows.written < 1000
    rows.read = rows.written = 0
    Buckets(rows, former).put_many({b"7": (2, b"", 0, -1, b"", 0)})
    assert (rows.read, rows.written) == (2, 2)


def test_an_added_bucket_takes_its_keys_from_one_other() -> None:
    """Each number keeps its bucket or goes to the added one, which takes numbers of one bucket only."""
    for count in range(1, 40):
        moved = {
            bucket_of(number, count)
            for number in range(2000)
            if bucket_of(number, count) != bucket_of(number, count + 1)
        }
        assert len(moved) == 1
        assert all(bucket_of(number, count + 1) in (bucket_of(number, count), count) for number in range(2000))


def test_a_checkpoint_of_an_earlier_version_is_refused() -> None:
    """State with a row for each key is refused, and the error says how to go on; it is not taken for an empty one."""
    former = Rows()
    former.rows[b"1"] = b"\0" * 20
    with pytest.raises(Stop, match="new checkpointLocation, initial='sow', and as startingOffsets"):
        Buckets(Rows(), former).get_many([b"1"])


def test_a_bucket_with_an_object_is_refused() -> None:
    """A bucket is read without creating objects of classes, so that a damaged one cannot run code."""
    rows = Rows()
    Buckets(rows, Rows()).put_many({b"1": (1, b"{}", 0, -1, b"", 0)})
    rows.rows[b"0"] = pickle.dumps({b"1": os.system})
    with pytest.raises(Stop, match="damaged"):
        Buckets(rows, Rows()).get_many([b"1"])


def test_the_row_of_sizes_has_the_number_of_entries() -> None:
    """The number of records in a state is read from one row of each partition."""
    store = Rows()
    for changes, count in (({b"1": 1, b"2": 2}, 2), ({b"2": 3, b"3": 4}, 3), ({b"1": None, b"9": None}, 2)):
        buckets = Buckets(store, Rows())
        buckets.put_many({key: None if n is None else (n, b"{}", 0, 0, b"", 0) for key, n in changes.items()})
        assert entries_in(b"\x00" + store.rows[b"size"]) == count


class Jvm:
    """Answers a request when its answer is read; pending requests and answers must fit the buffers of the sockets."""

    def __init__(self, status: int = 0) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.waiting: list[bytes] = []
        self.most = self.most_bytes = 0
        self._status = status
        self._pickle = CPickleSerializer()
        self.sockfile = self

    def write(self, frame: bytes) -> None:
        """Take a request: a version, a length and a message."""
        version, length = struct.unpack_from(">ii", frame)
        assert (version, length) == (0, len(frame) - 8)
        self.waiting.append(frame[8:])

    def flush(self) -> None:
        """Count what waits for answers."""
        self.most = max(self.most, len(self.waiting))
        self.most_bytes = max(self.most_bytes, sum(map(len, self.waiting)))

    def _call(self, message: bytes):
        import pyspark.sql.streaming.proto.StateMessage_pb2 as messages

        return messages.StateRequest.FromString(message).stateVariableRequest.mapStateCall

    def _receive_proto_message(self) -> tuple[int, str, bytes]:
        call = self._call(self.waiting.pop(0))
        assert call.stateName == "records"
        asked = call.WhichOneof("method")
        (key,) = self._pickle.loads(getattr(call, asked).userKey)
        answer = b""
        if asked == "updateValue":
            (self.rows[key],) = self._pickle.loads(call.updateValue.value)
        elif asked == "removeKey":
            self.rows.pop(key, None)
        elif key in self.rows:
            answer = self._pickle.dumps((self.rows[key],))
        return self._status, "no disk", answer

    def map(self) -> BulkMap:
        """The state as PySpark would hold it."""
        return BulkMap(
            SimpleNamespace(_stateName="records", _mapStateClient=SimpleNamespace(_stateful_processor_api_client=self))
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_bulk_map_answers_as_a_map(seed) -> None:
    """Values of any size are set, read and removed by key, and pending requests never exceed the limits.

    Spark 4.0.0 takes a request that has arrived in part for a whole one, so that what is sent at once must be small.
    """
    print("seed", seed)
    rng = random.Random(seed)
    sizes = [3, 200, PART_BYTES, PART_BYTES + 1, 70_000]
    jvm, expected = Jvm(), {}
    state = jvm.map()
    for _ in range(20):
        changes = {
            b"%d" % rng.randrange(900): rng.choice([None, b"", rng.randbytes(rng.choice(sizes))])
            for _ in range(rng.randrange(400))
        }
        state.get_many(list(changes))
        state.put_many(changes)
        expected.update(changes)
        keys = rng.sample([b"%d" % number for number in range(900)], 500)
        assert state.get_many(keys) == {key: expected.get(key) for key in keys}
    assert not jvm.waiting
    assert 1 < jvm.most <= _REQUESTS_MAX
    assert 0 < jvm.most_bytes <= _SENT_BYTES_MAX
    kept = {key for key, value in expected.items() if value is not None}
    assert {key for key in jvm.rows if key[:1] != b"\xff"} == kept
    parts = sum(-(-len(value) // PART_BYTES) for value in expected.values() if value and len(value) > PART_BYTES)
    assert len(jvm.rows) == len(kept) + parts, "parts of former values are gone"


def test_a_failure_of_spark_is_raised() -> None:
    """A failure that Spark reports is raised as an error."""
    with pytest.raises(RuntimeError, match=r"'records' failed: no disk"):
        Jvm(1).map().put_many({b"1": b"2"})


class Evil:
    """An object whose pickle makes a directory when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def buckets_of(row):
    """Read a bucket of records."""
    state = Rows()
    buckets = Buckets(state, Rows())
    buckets.get_many([b"7"])
    buckets.put_many({b"7": (1, b"{}", 0, -1, b"", 0)})
    assert list(state.rows) == [SIZE, b"0"]
    state.rows[b"0"] = row
    return Buckets(state, Rows()).get_many([b"7"])


def image_of(row):
    """Read the record before a change."""

    class Value:
        def get(self):
            return (row,)

        def update(self, value):
            """Keep nothing."""

    class Handle:
        def getValueState(self, name, schema):  # noqa: N802 - Spark's
            return Value()

    images = PreImages()
    images.init(Handle())
    change = {"key": b"7", "partition": 0, "offset": 5, "timestamp": None, "kind": "update", "headers": []}
    return list(images.handleInputRows((b"7",), iter([pd.DataFrame([{**change, "value": b"{}"}])]), None))


@pytest.mark.parametrize("read", [buckets_of, image_of])
def test_a_state_with_an_object_or_of_other_bytes_stops_and_runs_nothing(read, tmp_path):
    """A row of the state that is damaged, or that names a function or a class, is refused before it is called."""
    made = tmp_path / "made"
    objects = [pickle.dumps(value) for value in (Evil(made), {b"7": Evil(made)}, date(2026, 1, 1))]
    for row in (*objects, b"", b"\x80\x04K", b"?"):
        with pytest.raises(Stop, match="Spark's state is damaged: "):
            read(row)
    assert not made.exists()


def test_what_the_product_wrote_is_read():
    """Entries and images of plain values are read as they were written."""
    assert buckets_of(pickle.dumps({b"7": (2, b"{}", 0, -1, b"", 0)})) == [(b"7", (2, b"{}", 0, -1, b"", 0))]
    [frame] = image_of(pickle.dumps((b'{"a":1}', [("version", b"1"), ("x", None)])))
    assert list(frame["image"]) == ["pre", "post"]
    assert list(frame["value"]) == [b'{"a":1}', b"{}"]
