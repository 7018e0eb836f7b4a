"""The contract of every store, on disk and in memory."""

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
        """A new store is empty, and at the beginning of the SOW topic."""
        assert store.progress() == Progress(0, 0)
        assert store.get_many([b"a", b""]) == [None, None]
        assert list(store.scan()) == []

    def test_what_is_applied_is_read_back_in_the_order_asked_for(self, store):
        """Every field of a record is read back, for keys of any bytes; a key may be requested twice."""
        records = {key: Stored(n, b"value of " + key, 1000 + n, n - 3) for n, key in enumerate(KEYS)}
        store.apply(records, Progress(7, 8))
        asked = [*reversed(KEYS), b"nobody", KEYS[0]]
        assert store.get_many(asked) == [records.get(key) for key in asked]
        assert store.get_many([]) == []

    def test_a_record_replaces_the_one_before(self, store):
        """A record replaces the one before it."""
        store.apply({b"a": Stored(1, b"one")}, Progress(1, 0))
        store.apply({b"a": Stored(2, b"")}, Progress(2, 0))
        assert store.get_many([b"a"]) == [Stored(2, b"")]

    def test_none_deletes(self, store):
        """A delete removes the record and not its neighbours; deleting a missing record is no error."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(1, 0))
        store.apply({b"a": None, b"nobody": None}, Progress(2, 0))
        assert store.get_many([b"a", b"ab"]) == [None, Stored(1, b"ab")]
        assert len(list(store.scan())) == len(KEYS) - 1

    def test_records_and_progress_come_together(self, store):
        """The progress is that of the last batch, also of a batch without records."""
        store.apply({b"a": Stored(1, b"x")}, Progress(5, 1_700_000_000_000))
        assert store.progress() == Progress(5, 1_700_000_000_000)
        store.apply({}, Progress(2**62, 2))
        assert store.progress() == Progress(2**62, 2)

    def test_a_scan_gives_every_record_in_the_order_of_keys(self, store):
        """A scan returns every record in the byte order of the keys, without the store's own entries."""
        store.apply({key: Stored(1, key) for key in reversed(KEYS)}, Progress(1, 0))
        assert list(store.scan()) == [(key, Stored(1, key)) for key in sorted(KEYS)]

    def test_a_scan_goes_on_behind_a_key(self, store):
        """A scan continues after any key, also a missing one: no key is skipped or repeated."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(1, 0))
        for after in (*KEYS, b"nobody", b"a\x00"):
            assert [key for key, _ in store.scan(after)] == sorted(key for key in KEYS if key > after)

    def test_large_values_come_back(self, store):
        """A value of 16 MB, the limit of the topics, is read back."""
        value = bytes(range(256)) * (16 * 4096)
        store.apply({b"large": Stored(1, value)}, Progress(1, 0))
        assert store.get_many([b"large"]) == [Stored(1, value)]

    def test_numbers_at_their_limits_come_back(self, store):
        """Numbers at their limits are read back: negative offsets, which mean none, and 64 bits."""
        records = {b"low": Stored(-(2**63), b"", -1, -1), b"high": Stored(2**63 - 1, b"", 2**63 - 1, 2**63 - 1)}
        store.apply(records, Progress(-1, -1))
        assert dict(store.scan()) == records
        assert store.progress() == Progress(-1, -1)

    def test_a_wiped_one_is_as_good_as_new(self, store):
        """A wiped store is empty, and can be written again."""
        store.apply({key: Stored(1, key) for key in KEYS}, Progress(9, 9))
        store.wipe()
        assert store.progress() == Progress(0, 0)
        assert list(store.scan()) == []
        store.apply({b"a": Stored(1, b"again")}, Progress(1, 1))
        assert list(store.scan()) == [(b"a", Stored(1, b"again"))]


EXPIRATIONS = st.binary(max_size=9).map(lambda text: text.replace(b"\0", b""))


@settings(max_examples=200, deadline=None, print_blob=True)
@given(
    st.builds(Stored, I64, st.binary(max_size=40), I64, I64, EXPIRATIONS, st.binary(max_size=9)),
    st.builds(Progress, I64, I64),
)
def test_what_is_written_to_disk_is_read_back(stored, progress):
    """Every record and progress is decoded as it was encoded, to the byte."""
    assert decode_record(encode_record(stored)) == stored
    assert decode_progress(encode_progress(progress)) == progress


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.integers(1, 2**63 - 1), st.binary(max_size=9))))
def test_rows_of_the_index_stand_in_order_of_time(expiring):
    """The keys of the expiry index sort by time and then by key, and both can be decoded."""
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
        (
            encode_record(Stored(1, b"{}", 0, 0, b"abc", b"de")),
            b"\1" + b"\0" * 7 + b"\0" * 8 + b"\0" * 8 + b"\6\0" + b"abc\0de{}",
        ),
        (
            encode_record(Stored(1, b"{}", 0, 0, b"", b"de")),
            b"\1" + b"\0" * 7 + b"\0" * 8 + b"\0" * 8 + b"\3\0" + b"\0de{}",
        ),
        (expiry_row((258, b"k")), b"e" + b"\0" * 6 + b"\1\2k"),
        (encode_progress(Progress(258, 3)), b"\2\1" + b"\0" * 6 + b"\3" + b"\0" * 7),
    ],
)
def test_the_bytes_on_disk_stay_as_they_are(written, on_disk):
    """The bytes on disk stay the same: this test changes only together with FORMAT."""
    assert written == on_disk
