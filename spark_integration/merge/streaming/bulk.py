"""Reads and writes many keys of a Spark map state at once.

PySpark requests one key at a time from the JVM and waits for each answer, some 100 µs; a micro-batch needs thousands.
This class sends the same requests, but many of them before it reads the first answer. It uses undocumented parts of
PySpark; in a version without them, it requests one key at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

_QUESTIONS_MAX: Final = 256
"""Limit of requests without an answer: their answers must fit the buffer of a socket until they are read."""
_BYTES_MAX: Final = 32 * 1024
"""Limit of the bytes of these requests: they must fit the buffer of a socket while the JVM writes answers."""


class BulkMap:
    """A map state from binary to binary."""

    def __init__(self, state: MapState) -> None:
        self._state = state
        self._wire = _Wire.of(state)

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """The values of these keys, None for a missing one."""
        if self._wire is not None:
            return dict(zip(keys, self._wire.get_many(keys), strict=True))
        rows = [(key, self._state.getValue((key,))) for key in keys]
        return {key: None if row is None else bytes(row[0]) for key, row in rows}

    def put_many(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set values; None removes a key."""
        if self._wire is not None:
            self._wire.put_many(changes)
            return
        for key, value in changes.items():
            if value is None:
                self._state.removeKey((key,))
            else:
                self._state.updateValue((key,), (value,))


class _Wire:
    """PySpark's connection to the JVM, as its own `MapStateClient` uses it."""

    def __init__(self, name: str, client: Any) -> None:
        import pyspark.sql.streaming.proto.StateMessage_pb2 as messages  # noqa: PLC0415 - needs protobuf
        from pyspark.serializers import CPickleSerializer  # noqa: PLC0415

        self._messages: Any = messages
        self._name = name
        self._send, self._receive = client._send_proto_message, client._receive_proto_message  # noqa: SLF001
        pickles: Any = CPickleSerializer()
        self._dumps, self._loads = pickles.dumps, pickles.loads

    @classmethod
    def of(cls, state: MapState) -> _Wire | None:
        """The connection of a state; None where this version of PySpark has another one."""
        try:
            return cls(state._stateName, state._mapStateClient._stateful_processor_api_client)  # noqa: SLF001
        except (AttributeError, ImportError):
            return None

    def get_many(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        new = self._messages.GetValue
        questions = ({"getValue": new(userKey=self._dumps((key,)))} for key in keys)
        for answer in self._answers(questions):
            yield bytes(self._loads(answer)[0]) if answer else None

    def put_many(self, changes: Mapping[bytes, bytes | None]) -> None:
        for _ in self._answers(self._change(key, value) for key, value in changes.items()):
            pass

    def _change(self, key: bytes, value: bytes | None) -> dict[str, Any]:
        row = self._dumps((key,))
        if value is None:
            return {"removeKey": self._messages.RemoveKey(userKey=row)}
        return {"updateValue": self._messages.UpdateValue(userKey=row, value=self._dumps((value,)))}

    def _answers(self, questions: Iterator[dict[str, Any]]) -> Iterator[bytes]:
        """Send requests; yields the value of each answer, in their order."""
        messages = self._messages
        waiting = waiting_bytes = 0
        for question in questions:
            call = messages.MapStateCall(stateName=self._name, **question)
            request = messages.StateRequest(stateVariableRequest=messages.StateVariableRequest(mapStateCall=call))
            data = request.SerializeToString()
            if waiting == _QUESTIONS_MAX or waiting_bytes + len(data) > _BYTES_MAX:
                for _ in range(waiting):
                    yield self._answer()
                waiting = waiting_bytes = 0
            self._send(data)
            waiting, waiting_bytes = waiting + 1, waiting_bytes + len(data)
        for _ in range(waiting):
            yield self._answer()

    def _answer(self) -> bytes:
        status, error, value = self._receive()
        if status != 0:
            raise RuntimeError(f"Spark's state {self._name!r} failed: {error}")
        found: bytes = value
        return found
