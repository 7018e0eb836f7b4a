"""Bulk look-ups against a fake of the JVM's end of PySpark's connection, with the real messages."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'sowstream[spark]'")

from pyspark.serializers import CPickleSerializer

from spark_integration.merge.streaming.buckets import _REQUESTS_MAX, _SENT_BYTES_MAX, PART_BYTES, BulkMap


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
