"""Spark's state is read without running code of it: in the merge, and in the images of changes."""

from __future__ import annotations

import os
import pickle
from datetime import date

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'sowstream[spark]'")

import pandas as pd

from processor.errors import Stop
from spark_integration.merge.streaming.buckets import SIZE, Buckets
from spark_integration.read.images import PreImages


class Evil:
    """An object whose pickle makes a directory when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Rows:
    """Spark's map state, as `BulkMap` hands it over."""

    def __init__(self, rows=()):
        self.rows = dict(rows)

    def get_many(self, keys):
        """The values of keys."""
        return {key: self.rows.get(key) for key in keys}

    def put_many(self, changes):
        """Set values."""
        self.rows.update(changes)

    def has_rows(self):
        """True if there is any."""
        return bool(self.rows)


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
