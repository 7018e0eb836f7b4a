import pytest

from processor.client.envelope import Envelope
from processor.client.options import Options
from processor.client.updates import ComputedDeltas, WholeRecords, WrittenDeltas
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.record import Record
from tests.client.message_types import Framed, Whole


def envelope(codec: JsonCodec, **options: bool) -> Envelope:
    """The messages of one subscription."""
    return Envelope("orders", codec, Options(**options))


def record(value: bytes | None, **headers: str) -> Record:
    """A record of key 1 as a worker writes it."""
    return Record(b"1", value, [(name, text.encode()) for name, text in headers.items()], 0, 0)


def test_a_delta_is_read_with_its_headers():
    """Where the message type says part of a delta in headers, as Avro does, the subscriber's codec gets them."""
    updates = WrittenDeltas(envelope(Framed()), Options())
    message = updates.update(record(b"[1,2]", fields='["id","n"]', version="2"))
    assert message is not None
    assert (message.data, message.delta, message.version) == ({"id": 1, "n": 2}, True, 2)


def test_whole_records_are_told_as_such():
    """A delta subscription to a message type without deltas gets full messages, and says that they are full."""
    codec = Whole()
    computed = ComputedDeltas(envelope(codec), Options(), KeyFields(("/id",)), tells_snapshot=True)
    computed.load(record(b'{"id":1,"n":1,"m":1}', version="1"))
    for updates in (WrittenDeltas(envelope(codec), Options()), computed):
        message = updates.update(record(b'{"id":1,"n":2}', version="2"))
        assert message is not None
        assert (message.data, message.delta, message.removed) == ({"id": 1, "n": 2}, False, ())


@pytest.mark.parametrize(("kind", "reason"), [("expire", "expired"), ("delete", "deleted")])
def test_why_a_record_is_gone(kind: str, reason: str):
    """An `oof` tells an expiry from a delete, with the last record and its correlation id."""
    view = envelope(JsonCodec(), oof=True)
    options = Options(oof=True)
    for updates in (
        WholeRecords(view, options),
        ComputedDeltas(view, options, KeyFields(("/id",)), tells_snapshot=True),
    ):
        first = updates.load(record(b'{"id":1}', version="1", correlation_id="YWJj"))
        assert first is not None
        assert first.correlation_id == "YWJj"
        gone = updates.update(record(None, version="2", kind=kind))
        assert gone is not None
        assert (gone.command, gone.reason, gone.data) == ("oof", reason, {"id": 1})


def test_an_expiry_is_no_delta():
    """The delta topic's record of an expiry tells a plain delta subscriber nothing: only `oof` would."""
    assert WrittenDeltas(envelope(JsonCodec()), Options()).update(record(b'{"id":1}', kind="expire")) is None
