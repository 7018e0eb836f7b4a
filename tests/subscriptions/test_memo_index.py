"""The memo index finds all records with a value at a path, through any updates."""

from __future__ import annotations

import itertools
import json
import random
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.codec.json import JsonCodec
from processor.errors import RecordRejected
from processor.filter import RecordMetadata, compile_filter
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, Options, SubscriptionSpec, Topic
from processor.subscriptions.records import memo_index
from processor.subscriptions.records.memo_index import MemoIndex
from processor.subscriptions.request.update import Update
from processor.values.key_text import group_key
from tests.subscriptions.desk import ORDERS

if TYPE_CHECKING:
    from collections.abc import Sequence


TOPIC = Topic("orders", JsonCodec(), KeyFields(("/id",)))


class Watched(MemoryRecords):
    """A view that counts its scans."""

    scans = 0

    def scan(self) -> Any:
        """Yield every record and count the scan."""
        self.scans += 1
        return super().scan()


def record(key: int, value: Any, offset: int = 0) -> Record:
    """An update of a key; the value None deletes it."""
    data = None if value is None else json.dumps({"id": key, **value}).encode()
    return Record(b"%d" % key, data, [("version", b"1")], offset, 0)


def index_after_queries(records: Sequence[Record], text: str) -> tuple[MemoIndex, Watched]:
    """The memo index after two queries, and its view."""
    view = Watched()
    view.put(0, records)
    kept = MemoIndex(TOPIC, view)
    kept.records(compile_filter(text))
    kept.records(compile_filter(text))
    view.scans = 0
    return kept, view


def matching_keys(kept: MemoIndex, text: str) -> set[bytes]:
    """The keys of the records that the memo index returns and that match."""
    selection = compile_filter(text)
    records = kept.records(selection)
    assert records is not None
    return {one.key or b"" for one in records if selection.matches(TOPIC.value(one))}


def test_the_second_query_of_a_path_fills_an_index():
    """The first query of a path is a scan; the second one fills an index for all later ones."""
    view = Watched()
    view.put(0, [record(n, {"s": f"s{n % 10}"}) for n in range(100)])
    kept = MemoIndex(TOPIC, view)
    assert kept.records(compile_filter("/s = 's1'")) is None
    assert view.scans == 0
    assert len(list(kept.records(compile_filter("/s = 's2'")) or ())) == 10
    assert view.scans == 1
    assert len(list(kept.records(compile_filter("/s IN ('s3', 's4') AND /id > 50")) or ())) == 20
    assert kept.records(compile_filter("/s = 'nobody'")) == []
    assert view.scans == 1


@pytest.mark.parametrize("text", ["/s != 's1'", "NOT /s = 's1'", "/s = 's1' OR /id = 3", "/s LIKE 's1'"])
def test_a_query_without_an_equality_is_a_scan(text: str):
    """A query that a record without the value may match is a scan."""
    kept, _ = index_after_queries([record(1, {"s": "s1"})], "/s = 's1'")
    assert kept.records(compile_filter(text)) is None


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, 1e23, 2.0**60]),
    st.sampled_from(["", "1", "1.0", "01", "+1", "x", "0.5", "true", "99999999999999991611392"]),
    st.lists(st.sampled_from([1, "1", "x", None, [2]]), max_size=3),
    st.just({"x": 1}),
)
FILTERS = st.sampled_from(
    ["/s = 1", "/s = '1'", "/s = '1.0'", "/s = 'x'", "/s = TRUE", "/s IN (0.5, 'x', 2)", "/s = 0.50", "/s = NULL",
     "/s = 99999999999999991611392", "/s[0] = 1", "/s/x = 1", "1 = /s AND /t = 'x'", "/s = 'x' OR /s = 2"]
)  # fmt: skip


@given(
    st.dictionaries(st.integers(0, 5), VALUES, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.one_of(VALUES, st.just("gone"))), max_size=8),
    FILTERS,
)
def test_all_that_match_are_found(before: dict[int, Any], updates: list[tuple[int, Any]], text: str):
    """A query by the memo index finds the records of a scan, for any values and updates."""
    kept, view = index_after_queries([record(key, {"s": value, "t": "x"}) for key, value in before.items()], text)
    for key, value in updates:
        old = view.get_many([b"%d" % key])[b"%d" % key]
        new = record(key, None if value == "gone" else {"s": value, "t": "x"})
        if old is None and new.value is None:
            continue
        view.put(0, [new])
        kept.changed(Update(TOPIC, 0, b"%d" % key, old, new))
    view.scans = 0
    selection = compile_filter(text)
    expected = {one.key for one in view.scan() if selection.matches(TOPIC.value(one))}
    assert matching_keys(kept, text) == expected
    assert view.scans == 1, "it was looked up"


def test_the_old_value_of_a_record_is_removed_from_the_index():
    """A record that changed or was deleted is removed from the entries of its old value."""
    kept, view = index_after_queries([record(1, {"s": "a"}), record(2, {"s": "a"})], "/s = 'a'")
    for old, new in ((record(1, {"s": "a"}), record(1, {"s": "b"})), (record(2, {"s": "a"}), record(2, None))):
        view.put(0, [new])
        kept.changed(Update(TOPIC, 0, new.key or b"", old, new))
    assert kept.records(compile_filter("/s = 'a'")) == []
    assert kept._paths["s",].entries == 1


def test_decimals_are_found_by_their_exact_value():
    """Decimals are indexed by their exact value: one with more digits than a float equals only itself."""
    values = [0.1, "0.10", Decimal("0.10000000000000000001")]
    encoded = [TOPIC.codec.encode({"id": key, "s": value}) for key, value in enumerate(values)]
    records = [Record(b"%d" % key, value, [], key, 0) for key, value in enumerate(encoded)]
    kept, _ = index_after_queries(records, "/s = 1")
    assert matching_keys(kept, "/s = 0.10") == {b"0", b"1"}
    assert matching_keys(kept, "/s = 0.10000000000000000001") == {b"2"}


@pytest.mark.parametrize(
    ("pointers", "text", "keys"),
    [
        (("/id",), "/id = 'b'", {b"b"}),
        (("/id",), "/id IN ('a', 'c', 'nobody') AND /n > 1", {b"a", b"c"}),
        (("/x", "/id"), "/id = 'a' AND /x IN ('p', 'q')", {b'["p","a"]', b'["q","a"]'}),
    ],
)
def test_key_fields_need_no_scan(pointers: tuple[str, ...], text: str, keys: set[bytes]):
    """A query of all key fields finds its record by key at the first query, without a scan."""
    topic = Topic("orders", JsonCodec(), KeyFields(pointers))
    view = Watched()
    for offset, (id_, x) in enumerate([("a", "p"), ("b", "p"), ("c", "p"), ("a", "q")]):
        value = {"id": id_, "x": x, "n": offset}
        key = topic.key.text(value)
        assert key is not None
        view.put(0, [Record(key.encode(), json.dumps(value).encode(), [], offset, 0)])
    selection = compile_filter(text)
    records = MemoIndex(topic, view).records(selection)
    assert records is not None
    assert {one.key for one in records if selection.matches(topic.value(one))} == keys
    assert view.scans == 0


def test_a_key_field_in_an_array_is_found():
    """A key field inside an array is found by its value, though the record's key is another one."""
    topic = Topic("orders", JsonCodec(), KeyFields(("/a/id",)))
    engine = Engine(topic, MemoryRecords())
    engine.load(0, [Record(b"K", b'{"a":[{"id":"x"}]}', [], 0, 0), Record(b"x", b'{"a":{"id":"x"}}', [], 1, 0)])
    for _ in range(3):  # By a scan, by a scan that fills an index, and by the index.
        connection = engine.connect()
        request = SubscriptionSpec(topic, "/a/id = 'x'", Options(), snapshot=True, live=False, delta=False)
        connection.subscribe(request)
        assert [message.sow_key for message in connection.take(9)] == [None, "K", "x", None]


KEY_TEXTS = st.sampled_from(["x", "x", "y", "7", "7.0", "", "true"])
KEY_VALUES = st.one_of(KEY_TEXTS, KEY_TEXTS, st.integers(6, 8), st.booleans(), st.none())
BELOW = st.fixed_dictionaries(
    {"id": KEY_VALUES}, optional={"b": st.fixed_dictionaries({}, optional={"id": KEY_VALUES})}
)
BODIES = st.fixed_dictionaries(
    {"a": st.one_of(BELOW, st.lists(BELOW, max_size=2), st.lists(st.lists(BELOW, max_size=2), max_size=2), KEY_VALUES)},
    optional={"id": KEY_VALUES, "t": st.one_of(KEY_VALUES, st.lists(KEY_VALUES, max_size=2))},
)
CONSTANTS = st.sampled_from(["'x'", "'x'", "'y'", "'7'", "7", "'7.0'", "TRUE", "'true'", "''"])


def equalities(paths: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Filters of equalities on one of the paths."""
    return st.one_of(
        st.builds("{} = {}".format, paths, CONSTANTS), st.builds("{} IN ({}, {})".format, paths, CONSTANTS, CONSTANTS)
    )


OTHERS = equalities(st.sampled_from(["/id", "/a/id", "/a/b/id", "/t", "/a[0]/id"]))


@st.composite
def topics_with_queries(draw: st.DrawFn) -> tuple[tuple[str, ...], list[str]]:
    """Key fields and filters, some of which contain all key fields."""
    pointers = draw(st.sampled_from([("/id",), ("/a/id",), ("/a/id",), ("/id", "/a/id"), ("/a/b/id",), ("/id", "/t")]))
    by_key = st.tuples(*(equalities(st.just(pointer)) for pointer in pointers)).map(" AND ".join)
    other = st.one_of(
        OTHERS,
        st.builds("{} AND {}".format, OTHERS, OTHERS),
        st.builds("({} OR {}) AND {}".format, OTHERS, OTHERS, OTHERS),
    )
    return pointers, draw(st.lists(st.one_of(by_key, other), min_size=1, max_size=4))


@settings(max_examples=200, derandomize=True, database=None)
@given(topics_with_queries(), st.lists(st.tuples(KEY_TEXTS, BODIES), min_size=1, max_size=8))
def test_an_index_does_not_change_the_answer(asked: tuple[tuple[str, ...], list[str]], bodies: list[tuple[str, Any]]):
    """For all key fields and arrays, a query by key or index finds the records of a scan."""
    pointers, queries = asked
    topic = Topic("orders", JsonCodec(), KeyFields(pointers))
    view = MemoryRecords()
    for offset, (publishers_key, body) in enumerate(bodies):
        try:
            key = (topic.key.text(body) or publishers_key).encode()
            topic.key.check(key, body)
        except RecordRejected:
            continue  # A worker rejects it.
        view.put(0, [Record(key, json.dumps(body).encode(), [], offset, 0)])
    kept = MemoIndex(topic, view)
    for text in queries:
        selection = compile_filter(text)
        scanned = {one.key for one in view.scan() if selection.matches(topic.value(one))}
        for _ in range(3):
            records = kept.records(selection)
            candidates = view.scan() if records is None else records
            assert {one.key for one in candidates if selection.matches(topic.value(one))} == scanned


GROUPING_VALUES = ["true", '"x', "false", "t", "x", True, 1, "1", None, ""]


@pytest.mark.parametrize("pointers", [("/a",), ("/a", "/b")])
def test_the_key_of_a_group_is_found_by_its_values(pointers: tuple[str, ...]):
    """A query of all grouping fields finds the groups of a scan, also where a text is quoted in keys."""
    topic = Topic("by_active", JsonCodec(), KeyFields(pointers), has_group_keys=True)
    view = Watched()
    for offset, values in enumerate(itertools.product(GROUPING_VALUES, repeat=len(pointers))):
        row = {pointer[1:]: value for pointer, value in zip(pointers, values, strict=True)}
        view.put(0, [Record(group_key(values), json.dumps(row).encode(), [], offset, 0)])
    for values in itertools.product(["'true'", "TRUE", """'"x'""", "'t'", "'x'", "'1'"], repeat=len(pointers)):
        selection = compile_filter(" AND ".join(map("{} = {}".format, pointers, values)))
        scanned = {one.key for one in view.scan() if selection.matches(topic.value(one))}
        candidates = MemoIndex(topic, view).records(selection)
        assert (candidates is not None) is {"'t'", "'x'"}.issuperset(values)
        candidates = view.scan() if candidates is None else candidates
        assert {one.key for one in candidates if selection.matches(topic.value(one))} == scanned
        assert scanned


@pytest.mark.parametrize("text", ["/id = 7", "/id = '7'", "/id IN ('x', 7)", "/id = NULL", "/id = ''"])
def test_a_number_may_have_several_keys(text: str):
    """A query by a number is a scan at first, since the keys 7, 07 and 7.0 all equal the number."""
    kept = MemoIndex(TOPIC, MemoryRecords())
    assert kept.records(compile_filter(text)) is None


def test_a_path_with_too_many_entries_is_scanned_once(monkeypatch: pytest.MonkeyPatch):
    """A path with too many entries is not scanned again, whether it had them at the first scan or after an update."""
    monkeypatch.setattr(memo_index, "ENTRIES_MAX", 10)
    for count in (11, 10):
        kept, view = index_after_queries([record(n, {"s": "a"}) for n in range(count)], "/s = 'a'")
        new = record(11, {"s": "a"})
        view.put(0, [new])
        kept.changed(Update(TOPIC, 0, b"11", None, new))
        scans = view.scans
        for _ in range(3):
            assert kept.records(compile_filter("/s = 'a'")) is None
        assert view.scans == scans


def test_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    """The memo index has a bound: paths with too many values are dropped, and only the last few paths are kept."""
    monkeypatch.setattr(memo_index, "ENTRIES_MAX", 10)
    kept, view = index_after_queries([record(n, {"s": "a"}) for n in range(11)], "/s = 'a'")
    assert kept.records(compile_filter("/s = 'a'")) is None
    kept, view = index_after_queries([record(n, {"s": "a"}) for n in range(10)], "/s = 'a'")
    assert kept.records(compile_filter("/s = 'a'")) is not None
    new = record(10, {"s": "a"})
    view.put(0, [new])
    kept.changed(Update(TOPIC, 0, b"10", None, new))
    assert kept.records(compile_filter("/s = 'a'")) is None
    kept, view = index_after_queries([record(1, {"s": "a"})], "/s = 'a'")
    for name in "tuvw":
        kept.records(compile_filter(f"/{name} = 1"))
        kept.records(compile_filter(f"/{name} = 1"))
    view.scans = 0
    kept.records(compile_filter("/s = 'a'"))
    assert view.scans == 1, "it was built again"


def test_too_many_records_are_scanned(monkeypatch: pytest.MonkeyPatch):
    """A query that finds too many records is a scan, so its memory is bounded."""
    kept, _ = index_after_queries([record(n, {"s": "a"}) for n in range(10)], "/s = 'a'")
    monkeypatch.setattr(memo_index, "FOUND_MAX", 9)
    assert kept.records(compile_filter("/s = 'a'")) is None


def test_an_engine_looks_up_the_snapshots_of_joins():
    """Subscribers that join one after another get current snapshots without a scan for each."""
    view = Watched()
    engine = Engine(TOPIC, view)
    engine.load(0, [record(n, {"s": f"s{n % 3}"}, n) for n in range(9)])

    def joined(symbol: str) -> list[int]:
        connection = engine.connect()
        request = SubscriptionSpec(TOPIC, f"/s = '{symbol}'", Options(), snapshot=True, live=True, delta=True)
        connection.subscribe(request)
        return sorted(message.data["id"] for message in connection.take(100) if message.command == "sow")

    assert [joined("s0"), joined("s1"), joined("s2")] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert view.scans == 2
    engine.take(0, [record(0, {"s": "s1"}, 9), record(1, None, 10), record(9, {"s": "s1"}, 11)], 0)
    assert joined("s1") == [0, 4, 7, 9]
    assert view.scans == 2


def test_without_live_subscriptions_no_index_is_kept():
    """Without live subscriptions the engine keeps no memo index, since updates would make it stale."""
    view = Watched()
    engine = Engine(TOPIC, view)
    engine.load(0, [record(1, {"s": "a"})])
    request = SubscriptionSpec(TOPIC, "/s = 'a'", Options(), snapshot=True, live=False, delta=False)
    connection = engine.connect()
    for _ in range(3):
        connection.subscribe(request)
    connection.take(100)
    engine.take(0, [record(1, {"s": "b"}, 1), record(2, {"s": "a"}, 2)], 0)
    connection.subscribe(request)
    assert [message.sow_key for message in connection.take(100) if message.command == "sow"] == ["2"]


MANY = list(range(20))

QUERIES = [
    "/c = 'x'",
    "/c = 'x' AND /s = 1",
    "/c IN ('x', 'y') AND /s IN (1, 2) AND /q > 3",
    "/s = '2' AND /c = 7",
    f"/c IN ('x', {', '.join(map(str, range(99)))}) AND /s IN ({', '.join(map(str, range(2, 99)))})",
    "SOW_KEY() = '7'",
    "/q > 3 AND (SOW_KEY() = '8' OR SOW_KEY() IN ('9', '10', 'none'))",
]


class Unscanned(MemoryRecords):
    """A view that counts its scans."""

    scans = 0

    def scan(self):
        """Every record."""
        self.scans += 1
        return super().scan()


@pytest.mark.parametrize("has_listener", [True, False])
def test_a_query_by_declared_paths_scans_nothing(random_seed, has_listener):
    """A query with equalities at all paths of a declared index finds what a scan finds, without one.

    So it does after updates that no subscription waits for, in an engine that keeps no history.
    """
    rng = random.Random(random_seed)
    view = Unscanned()
    engine = Engine(ORDERS, view, indexes=[("/c",), ("/c", "/s")])
    world = {}

    def write(offset):
        key = str(rng.randrange(60))
        body = None if rng.random() < 0.1 else {"id": key, "q": rng.randrange(9)}
        if body is not None:
            body |= {"c": rng.choice(["x", "y", "z", 7, "7", ["x", "z"], MANY]), "s": rng.choice([1, 2, 3, "2", MANY])}
        world[key] = body
        value = None if body is None else json.dumps(body).encode()
        return Record(key.encode(), value, [("version", b"1")], offset, 0)

    engine.load(0, [write(offset) for offset in range(100)])
    engine.index()
    before = view.scans
    for offset in range(100, 400):
        connection = engine.connect()
        listener = engine.connect()
        if has_listener:
            listener.subscribe(SubscriptionSpec(ORDERS, None, Options(), snapshot=False, live=True, delta=False))
        engine.take(0, [write(offset)], offset)
        text = rng.choice(QUERIES)
        connection.subscribe(SubscriptionSpec(ORDERS, text, Options(), snapshot=True, live=False, delta=False))
        found = {message.sow_key for message in connection.take(1_000) if message.command == "sow"}
        compiled = compile_filter(text)
        assert found == {
            key
            for key, body in world.items()
            if body is not None and compiled.matches(body, RecordMetadata(sow_key=key))
        }
        listener.close()
    assert view.scans == before


def test_values_at_several_paths_do_not_multiply():
    """Arrays of one record, and lists of one filter, at the paths of a declared index take a time for their sum."""
    many = list(range(4_000))
    engine = Engine(ORDERS, MemoryRecords(), indexes=[("/c", "/s")])
    body = json.dumps({"id": "1", "c": many, "s": many}).encode()
    listed = f"IN ({', '.join(map(str, many))})"
    request = SubscriptionSpec(
        ORDERS, f"/c {listed} AND /s {listed}", Options(), snapshot=True, live=False, delta=False
    )
    began_s = time.process_time()
    engine.load(0, [Record(b"1", body, [("version", b"1")], 0, 0)])
    engine.index()
    connection = engine.connect()
    connection.subscribe(request)
    assert [message.sow_key for message in connection.take(9)] == [None, "1", None]
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(
    ("key", "texts"), [(b"\xff", [r"\xff"]), (rb"\xff", [r"\x5cxff", r"\xff"]), (b"7", ["7", "7.0"]), (b"a'b", ["a'b"])]
)
def test_a_key_is_asked_for_by_its_text(key, texts):
    """`SOW_KEY()` finds the record whose key has this text, with an escape or without."""
    view = Watched()
    view.put(0, [Record(key, b'{"id":1}', [], 0, 0)])
    kept, topic = MemoIndex(TOPIC, view), TOPIC
    for text in texts:
        quoted = text.replace("\\", "\\\\").replace("'", "\\'")
        selection = compile_filter(f"SOW_KEY() = '{quoted}'")
        candidates = kept.records(selection)
        assert (candidates is None) is ("\\x" in text)
        found = [one for one in candidates or view.scan() if selection.matches({}, topic.metadata_of(one))]
        assert bool(found) is (text == texts[0])
