"""Spark's readers of a topic that has moved."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import TopicMoved
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from spark_integration import read_changes, read_deltas, read_sow, stream_changes, stream_deltas, stream_sow
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

READERS = {
    "read_sow": read_sow,
    "read_deltas": read_deltas,
    "read_changes": lambda *args, **more: read_changes(*args, images="post", **more),
    "stream_sow": stream_sow,
    "stream_deltas": stream_deltas,
    "stream_changes": stream_changes,
}


def family(bootstrap: str, name: str, headers: dict[str, bytes], **settings: str) -> History:
    """A family whose topics have a record, a tombstone with a mark's key, and a later record."""
    history = History(name, bootstrap)
    key, _, _ = moved_record("orders_12")
    for role in ("sow", "delta"):
        history.create(role, **(settings if role == "sow" else {}))
        history.write(role, ("1", b'{"id":1}'), headers={"version": b"1", "kind": b"insert"})
        history.write(role, (key.decode(), None), headers=headers)
        history.write(role, ("1", b'{"id":1,"n":2}'), headers={"version": b"2"})
    return history


def test_every_reader_gets_the_new_name(spark, bootstrap, unique) -> None:
    """A read and a stream are refused at the call, although records stand behind the mark."""
    headers = dict(moved_record("orders_12")[2])
    moved = family(bootstrap, unique, headers, delete__retention__ms=str(MOVED_RETENTION_MS))
    for read in READERS.values():
        with pytest.raises(TopicMoved, match="orders_12"):
            read(spark, moved.name, options=moved.options)


def test_a_running_stream_fails_at_the_mark(spark, bootstrap, unique) -> None:
    """A query that was begun before the move fails with the place of the new name; a delete of that key fails none."""
    for number, headers in enumerate((dict(moved_record("orders_12")[2]), {"version": b"1", "kind": b"delete"})):
        history = family(bootstrap, f"{unique}{number}", headers)
        options = history.options | {"startingOffsets": "earliest"}
        for kind, stream in (("s", stream_sow), ("d", stream_deltas)):
            query = (
                stream(spark, history.name, options=options)
                .writeStream.format("memory")
                .queryName(f"{history.name}{kind}")
                .trigger(availableNow=True)
                .start()
            )
            try:
                if number == 0:
                    with pytest.raises(Exception, match=r"has moved, and gets no more records.*moved/orders_12"):
                        query.awaitTermination()
                else:
                    query.awaitTermination()
                    assert spark.table(f"{history.name}{kind}").count() == 3
            finally:
                query.stop()
