"""What every store promises: the one on disk and the one in memory alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.record import Stored
from processor.store.contract import Progress
from processor.store.layout import (
    decode_progress,
    decode_record,
    encode_progress,
    encode_record,
    expiring_of,
    expiry_row,
)

# Keys that a careless prefix or upper bound would lose or mix up.
KEYS = [
    b"",
    b"\0",
    b"a",
    b"a\0",
    b"ab",
    b"mformat",
    b"mprogress",
    b"r",
    b"rr",
    b"s",
    b"\xff",
    b"\xff\xff",
    "ключ".encode(),
]
I64 = st.integers(-(2**63), 2**63 - 1)


class TestStore:
    """The contract, clause by clause."""

    def test_a_new_one_is_empty(self, store):
        """No record, and nothing of the SOW topic is in it."""
        assert store.progress() == Progress(0, 0)
        assert store.get_many([b"a", b""]) == [None, None]
        assert list(store.scan()) == []

    def test_what_is_applied_is_read_back_in_the_order_asked_for(self, store):
        """Every field of a record comes back, for keys of any bytes; a key may be asked for twice."""
        records = {key: Stored(n, b"value of " + key, 1000 + n, n - 3) for n, key in enumerate(KEYS)}
        store.apply(records, Progress(7, 8))
        asked = [*reversed(KEYS), b"nobody", KEYS[0]]
        assert store.get_many(asked) == [records.get(key) for key in asked]
        assert store.get_many([]) == []

    def test_a_record_replaces_the_one_before(self, store):
        """The last one applied counts."""
        store.apply({b"a": Stored(1, b"one")}, Progress(1, 0))
        store.apply({b"a": Stored(2, b"")}, Progress(2, 0))
        assert store.get_many([b"a"]) == [Stored(2, b"")]

    def test_none_deletes(self, store):
        """The record is gone, its neighbours are not; deleting nothing is no error."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(1, 0))
        store.apply({b"a": None, b"nobody": None}, Progress(2, 0))
        assert store.get_many([b"a", b"ab"]) == [None, Stored(1, b"ab")]
        assert len(list(store.scan())) == len(KEYS) - 1

    def test_records_and_progress_come_together(self, store):
        """Progress is what the last batch said, also of a batch of no records."""
        store.apply({b"a": Stored(1, b"x")}, Progress(5, 1_700_000_000_000))
        assert store.progress() == Progress(5, 1_700_000_000_000)
        store.apply({}, Progress(2**62, 2))
        assert store.progress() == Progress(2**62, 2)

    def test_a_scan_gives_every_record_in_the_order_of_keys(self, store):
        """Bytes in their own order, whatever they are; the store's own marks are not among them."""
        store.apply({key: Stored(1, key) for key in reversed(KEYS)}, Progress(1, 0))
        assert list(store.scan()) == [(key, Stored(1, key)) for key in sorted(KEYS)]

    def test_a_scan_goes_on_behind_a_key(self, store):
        """Whether or not the store has that key: the next one follows, and no key is skipped or comes twice."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(1, 0))
        for after in (*KEYS, b"nobody", b"a\x00"):
            assert [key for key, _ in store.scan(after)] == sorted(key for key in KEYS if key > after)

    def test_large_values_come_back(self, store):
        """A record of 16 MB, the largest that the topics take."""
        value = bytes(range(256)) * (16 * 4096)
        store.apply({b"large": Stored(1, value)}, Progress(1, 0))
        assert store.get_many([b"large"]) == [Stored(1, value)]

    def test_numbers_at_their_limits_come_back(self, store):
        """Negative offsets, which stand for none, and 64 bits."""
        records = {b"low": Stored(-(2**63), b"", -1, -1), b"high": Stored(2**63 - 1, b"", 2**63 - 1, 2**63 - 1)}
        store.apply(records, Progress(-1, -1))
        assert dict(store.scan()) == records
        assert store.progress() == Progress(-1, -1)

    def test_a_wiped_one_is_as_good_as_new(self, store):
        """Nothing is left, and it can be written again."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(9, 9))
        store.wipe()
        assert store.progress() == Progress(0, 0)
        assert list(store.scan()) == []
        store.apply({b"a": Stored(1, b"again")}, Progress(1, 1))
        assert list(store.scan()) == [(b"a", Stored(1, b"again"))]


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.builds(Stored, I64, st.binary(max_size=40), I64, I64, st.binary(max_size=9)), st.builds(Progress, I64, I64))
def test_what_is_written_to_disk_is_read_back(stored, progress):
    """Any record and any progress, to the byte."""
    assert decode_record(encode_record(stored)) == stored
    assert decode_progress(encode_progress(progress)) == progress


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.integers(1, 2**63 - 1), st.binary(max_size=9))))
def test_rows_of_the_index_stand_in_order_of_time(expiring):
    """Their bytes compare as times and then keys do, and say both."""
    assert sorted(expiry_row(entry) for entry in expiring) == [expiry_row(entry) for entry in sorted(expiring)]
    assert [expiring_of(expiry_row(entry)) for entry in expiring] == expiring


@pytest.mark.parametrize(
    ("written", "on_disk"),
    [
        (encode_record(Stored(1, b"{}", 2, -1)), b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7 + b"\xff" * 8 + b"\0\0{}"),
        (
            encode_record(Stored(1, b"{}", 0, 0, b"abc")),
            b"\1" + b"\0" * 7 + b"\0" * 8 + b"\0" * 8 + b"\3\0" + b"abc{}",
        ),
        (expiry_row((258, b"k")), b"e" + b"\0" * 6 + b"\1\2k"),
        (encode_progress(Progress(258, 3)), b"\2\1" + b"\0" * 6 + b"\3" + b"\0" * 7),
    ],
)
def test_the_bytes_on_disk_stay_as_they_are(written, on_disk):
    """Another layout is another FORMAT: this test changes only together with it."""
    assert written == on_disk
