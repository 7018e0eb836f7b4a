import pytest

from processor.client.written_feed import WrittenDeltas
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.record import Record
from processor.subscribe import Options, Topic
from tests.client.message_types import Framed, Whole


def deltas(codec: JsonCodec, **options: bool) -> WrittenDeltas:
    """The messages of a plain delta subscription."""
    return WrittenDeltas(Topic("orders", codec, KeyFields(("/id",))), Options(**options))


def record(value: bytes | None, **headers: str) -> Record:
    """A record of key 1 as a worker writes it to the delta topic."""
    return Record(b"1", value, [(name, text.encode()) for name, text in headers.items()], 0, 0)


def test_a_delta_is_read_with_its_headers():
    """Where the message type says part of a delta in headers, as Avro does, the subscriber's codec gets them."""
    message = deltas(Framed()).message(record(b"[1,2]", fields='["id","n"]', version="2"))
    assert message is not None
    assert (message.data, message.delta, message.version) == ({"id": 1, "n": 2}, True, 2)


def test_whole_records_are_told_as_such():
    """A delta subscription to a message type without deltas gets full messages, and says that they are full."""
    message = deltas(Whole()).message(record(b'{"id":1,"n":2}', version="2"))
    assert message is not None
    assert (message.data, message.delta, message.removed) == ({"id": 1, "n": 2}, False, ())


@pytest.mark.parametrize("kind", ["expire", "delete"])
def test_who_is_gone_is_no_delta(kind: str):
    """The delta topic's record of a delete or an expiry tells a plain delta subscriber nothing: only `oof` would."""
    assert deltas(JsonCodec()).message(record(b'{"id":1}', kind=kind)) is None


def test_an_empty_delta_is_left_out_if_asked():
    """`no_empties` goes by what the worker says of its delta; without it the key fields are told."""
    empty = record(b'{"id":1}', empty="true", version="3")
    assert deltas(JsonCodec(), no_empties=True).message(empty) is None
    told = deltas(JsonCodec(), no_sowkey=True).message(empty)
    assert told is not None
    assert (told.data, told.sow_key, told.version) == ({"id": 1}, None, 3)
