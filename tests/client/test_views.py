import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from processor.client.feeds.compact_records import CompactRecords
from processor.client.feeds.growing_view import GrowingView, ReaderView
from processor.client.feeds.stored_partition import (
    _record,
    _record_of_row,
    _records_in_python,
    _row,
    has_compiled,
)
from processor.client.feeds.stored_view import StoredView
from processor.client.subscribe.kafka_opener import KafkaOpener
from processor.config import Config
from processor.errors import StateDamaged, Stop
from processor.kafka.message import Message as Kafka
from processor.kafka.partitioner import partition_for
from processor.record import Headers, Record
from processor.store.layout import decode_record, encode_record
from processor.wire.headers import header_text
from processor.wire.record_headers import headers_of_version

if has_compiled:
    from processor.client.feeds.stored_rows import records_of

PARTITIONS = 3
DAY_MS = 86_400_000
MakeView = Callable[..., StoredView]


def record(key: str, value: str | None, offset: int = 0, **headers: str) -> Record:
    """A SOW record as read from Kafka."""
    kept: Headers = [(name, text.encode()) for name, text in ({"version": "1"} | headers).items()]
    return Record(key.encode(), None if value is None else value.encode(), kept, offset, 1_700_000_000_000 + offset)


def said(found: Record | None) -> tuple[object, ...] | None:
    """The parts of a record that a view must return."""
    if found is None:
        return None
    version, correlation_id = (header_text(found.headers, name) for name in ("version", "correlation_id"))
    return found.key, found.value, found.offset, found.timestamp_ms, version, correlation_id


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[MakeView]:
    """Creates stored views in one directory, and closes them."""
    made: list[StoredView] = []

    def make(topic_id: str = "id", *, keeps: bool = True, write_back_bytes: int = 2_000) -> StoredView:
        view = StoredView(
            tmp_path / "orders",
            "orders.sow",
            topic_id,
            PARTITIONS,
            keeps=keeps,
            cache_bytes=1024 * 1024,
            write_back_bytes=write_back_bytes,
        )
        made.append(view)
        return view

    yield make
    for view in made:
        view.close()


@pytest.fixture(params=["memory", "moved", "moves", "stored", "kept"])
def view(request: pytest.FixtureRequest, stored: MakeView) -> Iterator[GrowingView | StoredView]:
    """Each kind of view, in each state of its life."""
    if request.param in ("stored", "kept"):
        yield stored(keeps=request.param == "kept")
        return
    view = GrowingView(PARTITIONS, memory_bytes={"memory": 10**9, "moves": 20_000, "moved": 0}[request.param])
    yield view
    view.close()


def test_a_view_has_the_last_record_of_every_key(view: GrowingView | StoredView, random_seed: int):
    """Compared with a dict, a view has the same records after any puts, deletes and reads, in any partition."""
    choice = random.Random(random_seed)
    expected: dict[bytes, Record] = {}
    keys = [f"k{number}" for number in range(60)]
    home = {key: choice.randrange(PARTITIONS) for key in keys}  # Third parties partition as they like.
    offset = 0
    for _ in range(60):
        partition = choice.randrange(PARTITIONS)
        batch = []
        for key in choice.choices([key for key in keys if home[key] == partition], k=choice.randrange(1, 12)):
            offset += 1
            value = None if choice.random() < 0.2 else f'{{"n":{offset}}}'
            batch.append(record(key, value, offset, version=str(offset), correlation_id="abc="))
        view.put(partition, batch)
        for put in batch:
            assert put.key is not None
            expected.pop(put.key, None)
            if put.value is not None:
                expected[put.key] = put
        if choice.random() < 0.5:
            view.settle()
        asked = [key.encode() for key in choice.choices(keys, k=9)]
        assert {key: said(found) for key, found in view.get_many(asked).items()} == {
            key: said(expected.get(key)) for key in asked
        }
        here = [key for key in asked if home[key.decode()] == partition]
        assert {key: said(found) for key, found in view.get_many(here, partition).items()} == {
            key: said(expected.get(key)) for key in here
        }
        assert {found.key: said(found) for found in view.scan()} == {
            key: said(found) for key, found in expected.items()
        }


def test_a_scan_is_of_one_moment(view: GrowingView | StoredView):
    """Puts, deletes, writes and the move to disk during a scan do not affect it."""
    view.put(0, [record(f"k{number}", "{}", number) for number in range(50)])
    scan = view.scan()
    first = [next(scan) for _ in range(10)]
    for number in range(50):
        view.put(0, [record(f"k{number}", None, 100 + number), record(f"new{number}", "x" * 1000, 200 + number)])
        view.settle()
    assert sorted(found.key or b"" for found in [*first, *scan]) == sorted(
        f"k{number}".encode() for number in range(50)
    )
    assert {found.value for found in view.scan()} == {b"x" * 1000}


def test_a_record_without_a_key_is_ignored(view: GrowingView | StoredView):
    """A record without a key, as a third party might write it, is ignored."""
    view.put(0, [Record(None, b"{}", None, 0, 0), record("k", "{}", 1)])
    assert [found.key for found in view.scan()] == [b"k"]


def test_odd_headers_harm_nothing(stored: MakeView):
    """A version too large for its field on disk is treated as a missing version."""
    view = stored(write_back_bytes=0)
    view.put(0, [record("k", "{}", version="9" * 30, correlation_id="a" * 70_000)])
    view.put(0, [record("l", "{}", version="one")])
    view.settle()
    assert {header_text(found.headers, "version") for found in view.scan()} == {None}


def test_headers_come_back_from_disk_as_they_were(stored: MakeView):
    """Headers with any bytes, repeated names, missing and empty values are restored; the version comes first."""
    theirs: Headers = [("trace", b"\xff\x00"), ("trace", None), ("", b""), ("gr\u00f6\u00dfe", b"x" * 70_000)]
    ours: Headers = [("expires_at", b"5"), ("conflated", b"2"), ("correlation_id", b"c")]
    view = stored(write_back_bytes=0)
    value = b'{"id":1}'
    view.put(0, [Record(b"k", value, [("kind", b"insert"), *theirs, ("version", b"7"), *ours], 3, 5)])
    view.put(0, [Record(b"l", value, None, 4, 5), Record(b"m", b"", [("version", b"1")], 5, 5)])
    view.settle()
    view.put(1, [Record(b"other", value, None, 4, 5)])  # Writes the settled records.
    view.settle()
    found = {one.key: one for one in view.scan()}
    assert found[b"k"] == Record(b"k", value, [("version", b"7"), *theirs, *ours], 3, 5)
    assert found[b"l"] == Record(b"l", value, None, 4, 5)
    assert found[b"m"] == Record(b"m", b"", [("version", b"1")], 5, 5)


@pytest.mark.parametrize("version", [1, 0])
def test_a_row_that_is_cut_off_is_damaged(version: int):
    """A row that ends too early at any byte raises an error instead of returning half a record."""
    headers: Headers = [("version", b"%d" % version), ("trace", b"abc"), ("empty", None)]
    stored_row = decode_record(_row(Record(b"k", b"", headers, 3, 5)))
    assert _record(b"k", stored_row).headers == headers[0 if version else 1 :]
    for length in range(len(stored_row.value)):
        with pytest.raises(StateDamaged, match=f"a record of {length} bytes is none of a view"):
            _record(b"k", stored_row._replace(value=stored_row.value[:length]))


def test_a_view_with_rows_of_another_layout_is_wiped(stored: MakeView, monkeypatch: pytest.MonkeyPatch):
    """A version with another row layout begins with an empty view, and reads the topic again."""
    with monkeypatch.context() as patch:
        patch.setattr("processor.client.feeds.stored_view.ROW_FORMAT", 1)
        view = stored()
        view.put(0, [record("k", "{}")])
        view.settle()
        view.close()
    assert list(stored().scan()) == []


def test_headers_count_towards_the_bound_of_memory():
    """Records with headers of their own move to disk sooner than records with a version alone."""
    moved = []
    for headers in ({}, {"trace": "x" * 200}):
        view = GrowingView(PARTITIONS, memory_bytes=200_000)
        for number in range(1_000):
            if view.is_on_disk:
                break
            view.put(0, [record(f"k{number}", "{}", **headers)])
        moved.append(number)
        view.close()
    assert moved[1] < moved[0] * 0.7


def test_a_readers_records_keep_the_headers_that_messages_are_made_of():
    """Other headers of Sowstream are dropped; equal headers share one object."""
    plain = [("version", b"7"), ("source", b"t/0/%d")]
    own = [("version", b"7"), ("kind", b"update"), ("client", b"desk"), ("sequence", b"%d"), ("source", b"t/0/%d")]
    rows = [
        [(name, value.replace(b"%d", b"%d" % n)) for name, value in form] for n in range(50) for form in (plain, own)
    ]
    messages = [
        Kafka(key=b"k", value=b"{}", headers=list(row), offset=offset, timestamp=(1, 5))
        for offset, row in enumerate(rows)
    ]
    made = CompactRecords().records(messages)
    assert [len(one.headers or ()) for one in made] == [1, 4] * 50
    assert len({id(one.headers) for one in made[::2]}) == 1
    assert {(one.headers or ())[3] for one in made[1::2]} == {("sequence", b"%d" % n) for n in range(50)}
    assert len({id((one.headers or ())[2]) for one in made[1::2]}) == 1


def test_a_large_view_moves_to_disk_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A view beyond its limit is in a temporary directory, which is removed at the end, also after an error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    view = GrowingView(PARTITIONS, memory_bytes=100_000)
    view.put(0, [record(f"k{number}", "x" * 100, number) for number in range(100)])
    assert not view.is_on_disk
    view.put(1, [record(f"l{number}", "x" * 100, number) for number in range(200)])
    assert view.is_on_disk
    assert len(list(tmp_path.iterdir())) == 1
    assert len(list(view.scan())) == 300
    with pytest.raises(KeyError):
        view.put(PARTITIONS, [record("k", "{}")])
    view.close()
    assert list(tmp_path.iterdir()) == []


def test_updates_of_few_keys_do_not_move_it(tmp_path: Path):
    """The size limit counts the records in the view, not the updates received."""
    view = GrowingView(PARTITIONS, memory_bytes=100_000)
    for offset in range(100):
        view.put(0, [record(f"k{number}", "x" * 100, offset) for number in range(50)])
    assert not view.is_on_disk
    view.close()


def test_waiting_records_are_bounded(stored: MakeView):
    """A view on disk keeps little in memory, even if nothing is ever marked as delivered."""
    view = stored(write_back_bytes=10_000)
    for offset in range(500):
        view.put(offset % PARTITIONS, [record(f"k{offset}", "x" * 500, offset)])
        assert view._waiting_bytes() <= 4 * 10_000 + 1_000


def test_a_kept_view_resumes_after_its_settled_records(stored: MakeView):
    """The next run has the settled records and positions; undelivered ones are missing, and are delivered then."""
    view = stored()
    view.put(0, [record("a", '{"n":1}', 10)])
    view.put(1, [record("b", '{"n":1}', 20)])
    view.settle()
    view.put(0, [record("a", '{"n":2}', 11), record("c", "{}", 12)])
    view.close()
    again = stored()
    assert again.positions == {0: 11, 1: 21, 2: 0}
    assert {found.key: found.value for found in again.scan()} == {b"a": b'{"n":1}', b"b": b'{"n":1}'}


def test_another_topic_of_the_same_name_has_another_view(stored: MakeView):
    """A view of a recreated topic is empty."""
    view = stored()
    view.put(0, [record("a", "{}", 10)])
    view.settle()
    view.close()
    again = stored(topic_id="other")
    assert again.positions == dict.fromkeys(range(PARTITIONS), 0)
    assert list(again.scan()) == []


@pytest.mark.parametrize(
    ("ends", "oldest", "horizon_ms", "wiped"),
    [
        ({0: 11, 1: 50, 2: 50}, {0: 0, 1: 0, 2: 0}, DAY_MS, set()),
        ({0: 10, 1: 50, 2: 50}, {0: 0, 1: 0, 2: 0}, DAY_MS, {0}),
        ({0: 50, 1: 50, 2: 50}, {0: 12, 1: 12, 2: 12}, DAY_MS, {0}),
        ({0: 50, 1: 50, 2: 50}, {0: 0, 1: 0, 2: 0}, -1, {0, 1}),
    ],
)
def test_stale_partitions_are_wiped(
    stored: MakeView, ends: dict[int, int], oldest: dict[int, int], horizon_ms: float, wiped: set[int]
):
    """A partition ahead of the topic, before its oldest record, or older than its deletes is wiped alone."""
    view = stored()
    now_ms = int(time.time() * 1000)
    for partition, offset in ((0, 10), (1, 20)):
        view.put(partition, [record(f"k{partition}", "{}", offset)._replace(timestamp_ms=now_ms)])
    view.settle()
    view.close()
    again = stored()
    assert set(again.wipe_stale(ends, oldest, horizon_ms)) == wiped
    assert {partition for partition, at in again.positions.items() if at} == {0, 1} - wiped
    assert len(list(again.scan())) == len({0, 1} - wiped)


def test_a_quiet_partition_is_not_old(stored: MakeView):
    """Old records at the end of a partition are fresh if a later check found nothing after them."""
    view = stored()
    view.put(0, [record("k", "{}", 10)])  # Of 2023.
    view.reached(0, 12, time.time())
    view.settle()
    view.close()
    again = stored()
    assert again.wipe_stale({0: 12, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}, DAY_MS) == {}
    assert again.positions[0] == 12


def test_a_view_is_as_old_as_its_last_check(stored: MakeView):
    """A reader that pauses for days before the end may have missed deletes in between."""
    view = stored()
    view.put(0, [record("k", "{}", 10)])
    view.reached(0, 12, time.time() - 2 * DAY_MS / 1000)
    view.settle()
    view.close()
    assert set(stored().wipe_stale({0: 12, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}, DAY_MS)) == {0}


def test_a_damaged_view_is_replaced(stored: MakeView, tmp_path: Path):
    """A directory that RocksDB cannot open is emptied, and the other partitions stay."""
    view = stored()
    for partition in range(PARTITIONS):
        view.put(partition, [record(f"k{partition}", "{}", 10)])
    view.settle()
    view.close()
    (tmp_path / "orders" / "0" / "rocksdb" / "CURRENT").write_bytes(b"rubbish")
    assert stored().positions == {0: 0, 1: 11, 2: 11}


def test_two_users_of_a_directory(stored: MakeView, tmp_path: Path):
    """The second user gets an error with the directory and advice; the first one goes on."""
    view = stored()
    with pytest.raises(Stop, match=f"{tmp_path / 'orders'} is in use.*view_dir of its own"):
        stored()
    view.put(0, [record("k", "{}", 10)])
    view.close()
    stored()


def test_keys_are_looked_for_at_home_first(stored: MakeView):
    """Of a key in two partitions, as after a change of partitioner, the one of Java's partitioner counts."""
    view = stored()
    home = partition_for(b"k", PARTITIONS)
    view.put((home + 1) % PARTITIONS, [record("k", '"away"')])
    view.put(home, [record("k", '"home"')])
    found = view.get_many([b"k"])[b"k"]
    assert found is not None
    assert found.value == b'"home"'


def test_a_kept_view_is_also_written_by_time(stored: MakeView, monkeypatch: pytest.MonkeyPatch):
    """Few waiting records reach the disk after some seconds, so that a killed client gets few again."""
    view = stored(write_back_bytes=1_000_000)
    view.put(0, [record("k", "{}", 10)])
    view.settle()
    assert view._waiting_bytes() > 0
    monkeypatch.setattr("processor.client.feeds.stored_view.WRITE_BACK_INTERVAL_S", 0.0)
    view.settle()
    assert view._waiting_bytes() == 0


def test_one_of_many_threads_has_the_view_that_is_kept(tmp_path: Path):
    """One thread of a client gets the kept view, the others read all records; after its close the next one gets it."""
    reading = KafkaOpener(Config(), None, None, name="desk", view_dir=tmp_path)  # type: ignore[arg-type]
    begin = threading.Barrier(8)

    def open_one(_number: int) -> ReaderView:
        begin.wait(120)
        return reading._view("orders.sow", "id", "orders", 1)

    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            views = list(pool.map(open_one, range(8)))
        assert sum(isinstance(view, StoredView) for view in views) == 1
        for view in views:
            view.close()


def test_a_view_that_cannot_be_opened_is_tried_again(tmp_path: Path):
    """If another process has the view, the next call tries again."""
    other, reading = (
        KafkaOpener(Config(), None, None, name="desk", view_dir=tmp_path)  # type: ignore[arg-type]
        for _ in range(2)
    )
    held = other._view("orders.sow", "id", "orders", 1)
    with pytest.raises(Stop, match="in use by another client"):
        reading._view("orders.sow", "id", "orders", 1)
    held.close()
    got = reading._view("orders.sow", "id", "orders", 1)
    assert isinstance(got, StoredView)
    got.close()


@pytest.mark.skipif(not has_compiled, reason="the rows are not compiled here")
def test_compiled_rows_are_those_of_python(random_seed: int):
    """Both make the same records of any rows, leave out newer keys, and end a piece at the same row."""
    choice = random.Random(random_seed)
    rows = []
    for number in range(500):
        headers: Headers = [("version", b"%d" % choice.choice((0, 1, 255, 256, 2**40)))]
        headers += [("trace", b"abc")] if choice.random() < 0.2 else []
        value = bytes(choice.randrange(256) for _ in range(choice.choice((0, 1, 40, 300))))
        kept = Record(b"%d" % number, value, headers, choice.choice((0, 2**50)), choice.choice((-1, 0, 2**41)))
        stored = decode_record(_row(kept))
        rows.append((kept.key or b"", encode_record(stored._replace(expiration=choice.choice((b"", b"", b"60"))))))
    over = {b"7": record("7", "{}"), b"8": record("8", None)}
    ways = []
    for pieces in (records_of, _records_in_python):
        left = iter(rows)
        ways.append([pieces(left, 50, 2_000, over, Record, headers_of_version, _record_of_row) for _ in range(60)])
    assert ways[0] == ways[1]
    assert ways[0][-1] == ([], True)
    assert [found.key for piece, _ in ways[0] for found in piece][6:8] == [b"6", b"9"]
