r"""The mark of a topic that has moved: nothing that a publisher can write is taken for one."""

from __future__ import annotations

import pytest

from processor.errors import RecordRejected
from processor.wire.command import CommandReader
from processor.wire.headers import Name
from processor.wire.heads import removal_headers
from processor.wire.moved import RESERVED, moved_record, moved_to, refuse_reserved

KEY = RESERVED + b"moved/orders_12"


def test_a_mark_names_the_topic() -> None:
    """The mark that `reshard` writes is recognised, and so is the one that earlier versions wrote."""
    key, value, headers = moved_record("orders_12")
    assert (key, value) == (KEY, None)
    assert moved_to(key, headers) == moved_to(key, tuple(headers)) == "orders_12"
    assert moved_to(KEY, [("version", b"1")]) == "orders_12"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        removal_headers(1, "delete"),
        removal_headers(2, "expire"),
        [("version", b"2")],
        [("version", b"1"), (Name.MOVED_TO, b"another")],
        [("version", b"1"), (Name.MOVED_TO, b"orders_12"), ("dlq_reason", b"missing_key")],
        [(Name.MOVED_TO, b"orders_12")],
    ],
)
def test_no_other_tombstone_of_that_key_is_a_mark(headers) -> None:
    """A tombstone of a worker has a kind, and a dead letter has its reason: neither is a mark."""
    assert moved_to(KEY, headers) is None


@pytest.mark.parametrize("key", [None, b"", b"7", RESERVED + b"input", b"sowstream/moved/orders_12"])
def test_no_tombstone_of_another_key_is_a_mark(key) -> None:
    """A mark has its own key."""
    assert moved_to(key, moved_record("orders_12")[2]) is None


def test_the_header_of_a_mark_does_not_travel() -> None:
    """A publisher's header of that name goes onto no topic of ours."""
    passed = CommandReader("delta_publish").read([(Name.MOVED_TO, b"orders_12"), ("own", b"1")]).passed
    assert passed == [("own", b"1")]


def test_reserved_keys_are_refused() -> None:
    """A key that begins with the reserved text is refused; one with another beginning is not."""
    for key in (RESERVED, KEY):
        with pytest.raises(RecordRejected, match=r"missing_key: .* reserved"):
            refuse_reserved(key)
    for key in (b"", b"\0", b"\0sowstream", b"sowstream/", b"x" + KEY):
        refuse_reserved(key)
