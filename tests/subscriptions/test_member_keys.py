"""The compiled keys of an order are those of the order, and of a record that they leave it is asked itself."""

from __future__ import annotations

import json
import random

import pytest

from processor.codec import load_codec
from processor.errors import Stop
from processor.filter.evaluation import NO_METADATA
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Topic
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.record_order import SortOrder, has_compiled, member_keys
from processor.subscriptions.request.select import Select

pytestmark = pytest.mark.skipif(not has_compiled, reason="the keys are not compiled here")

CODEC = load_codec("json")
TOPIC = Topic("orders", CODEC, KeyFields(("/id",)))
VALUES = (
    *("0", "-0", "7", "-12", "999999999999999999", "-999999999999999999", "1000000000000000000", "9223372036854775807"),
    *("18446744073709551615", "-9223372036854775808", "0.1", "-0.0", "0.13436424411240122", "1e5", "-2.5E-3", "1e300"),
    *("9007199254740992.0", "9007199254740993", "1e23", "-1e17", "5e-324", "true", "false", "null"),
    *('""', '"tea"', '"7"', '"-0.5"', '"1e400"', '" 7"', '"\\u00e9\\n"', '"é"', '"{\\"px\\":1}"', '"px\\":2"'),
    *("[]", "[3,4]", "[[5]]", '["x"]', "{}", '{"px":1}', '{"a":[1,{"px":9}]}'),
)


def compiled(text: str, records: list[Record], *, over_ms: int = 0, asked: list[Record] | None = None) -> list[object]:
    """The keys of records, in pieces; those that are asked for in another way are added to `asked`."""
    order = SortOrder(text)
    keys = member_keys(order, CODEC)
    assert keys is not None

    def key_of(record: Record) -> tuple[object, ...]:
        if asked is not None:
            asked.append(record)
        return order.key(record.key or b"", TOPIC.value(record), TOPIC.metadata_of(record))

    rows, by_key, scanned = iter(records), {}, []
    first: list[tuple[object, ...]] = []
    while not keys.scan(rows, 3, 10_000, over_ms, {}, key_of, by_key, scanned, first, None):
        pass
    assert scanned == first == list(by_key.values())
    assert [key[-1] for key in scanned] == list(by_key)
    return scanned


def a_record(number: int, text: str) -> Record:
    """A record of a text."""
    return Record(b"%d" % number, text.encode(), [("version", b"1")], number, 0)


def random_text(rng: random.Random) -> str:
    """An object with a member `px`, twice at times, among others; compact at most times."""
    members = [(rng.choice(("id", "a", "", "px2", "pxé")), rng.choice(VALUES)) for _ in range(rng.randrange(4))]
    members += [("px", rng.choice(VALUES)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    rng.shuffle(members)
    if rng.random() < 0.1:
        members.append((rng.choice(("\\u0070x", 'q\\"', "p\\\\x")), "1"))
    comma, colon = rng.choice(((",", ":"), (",", ":"), (",", ":"), (", ", ": ")))
    return "{" + comma.join(f'"{name}"{colon}{value}' for name, value in members) + "}"


@pytest.mark.parametrize("text", ["/px", "/px DESC", "/pxé", "/a DESC"])
def test_compiled_keys_are_those_of_the_order(random_seed: int, text: str) -> None:
    """Every value has the place that the order gives it, with its type: 1 and 1.0 are written in other ways."""
    rng, order = random.Random(random_seed), SortOrder(text)
    records = [a_record(number, random_text(rng)) for number in range(2_000)]
    expected = [order.key(record.key or b"", TOPIC.value(record), TOPIC.metadata_of(record)) for record in records]
    keys = compiled(text, records)
    assert keys == expected
    assert [repr(key) for key in keys] == [repr(key) for key in expected]
    assert sorted(keys) == sorted(expected)


def test_an_ordinary_record_is_not_parsed() -> None:
    """The compiled keys take the texts that workers write; of others the whole record is parsed."""
    asked: list[Record] = []
    plain = [a_record(n, f'{{"id":{n},"px":{value},"note":"a,b}}"}}') for n, value in enumerate(VALUES)]
    compiled("/px", plain, asked=asked)
    assert asked == []
    odd = ['{"id":1, "px":2}', '{"\\u0070x":1}', '{"px":0.1234567890123456789} ', "{}\n", " {}"]
    compiled("/px", [a_record(n, text) for n, text in enumerate(odd)], asked=asked)
    assert [record.offset for record in asked] == [*range(len(odd))]


def test_expired_records_are_left_out() -> None:
    """A record with a time to live that is over has no place; one of another time has."""
    headers = [[("version", b"1"), ("expires_at", b"%d" % at_ms)] for at_ms in (5, 50)]
    records = [Record(b"%d" % n, b'{"px":1}', each, n, 0) for n, each in enumerate(headers)]
    assert compiled("/px", records, over_ms=10) == [(2, 1, b"1")]


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", '{"px":}', '{"px":1', '{"px":tru}', '{"px":1}}'])
def test_a_record_that_no_worker_wrote_is_an_error(text: str) -> None:
    """As where all records are parsed: the order does not begin without one of them."""
    with pytest.raises(Stop):
        compiled("/px", [a_record(0, text)])


@pytest.mark.parametrize("text", ["/px, /id", "/px + 1", "/px/a", "/px[0]", "MESSAGE_SIZE()", None])
def test_other_orders_parse_the_records(text: str | None) -> None:
    """Only a member of the record itself is found in its text."""
    assert member_keys(SortOrder(text), CODEC) is None
    assert member_keys(SortOrder("/px"), load_codec("bson")) is None


def test_a_piece_ends_after_so_many_bytes() -> None:
    """A large record ends the piece, so that the turn of the event loop is looked at."""
    keys = member_keys(SortOrder("/px"), CODEC)
    assert keys is not None
    rows = iter([a_record(n, json.dumps({"px": n, "note": "x" * 1_000}, separators=(",", ":"))) for n in range(9)])
    scanned: list[tuple[object, ...]] = []
    assert not keys.scan(rows, 9, 2_000, 0, {}, lambda _: (), {}, scanned, [], None)
    assert [key[1] for key in scanned] == [0, 1]


def test_an_order_by_rights_does_not_look_into_the_text() -> None:
    """The text of a record has the fields that its reader may not see: by their values its order could be found out."""
    right = Entitlement(None, Select("-/px", TOPIC.key))
    order = right.ordered(SortOrder("/px"))
    assert member_keys(order, CODEC) is None
    assert order.key(b"1", {"id": 1, "px": 7}, NO_METADATA) == (0, 0, b"1")
