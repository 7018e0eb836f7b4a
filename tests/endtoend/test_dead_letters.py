"""Tests of bad input: it becomes dead letters with a clear reason, and the worker goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.endtoend.oracle import last_per_key

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

BAD: list[tuple[str, bytes | None, Any, dict[str, str]]] = [
    ("undecodable", b"1", b"{not json", {}),
    ("undecodable", b"1", b"\xff\xfe", {}),
    ("not_an_object", b"1", b"[1,2]", {}),
    ("missing_key", None, b'{"name":"nobody"}', {}),
    ("missing_key", None, None, {}),
    ("key_mismatch", b"1", b'{"id":2}', {}),
    ("unknown_command", b"1", b'{"id":1}', {"command": "upsert"}),
    ("bad_header", b"1", b'{"id":1}', {"remove": "not a list"}),
    ("too_large", b"1", b'{"id":1,"blob":"' + b"x" * 5_000_000 + b'"}', {}),
    ("too_deep", b"1", b'{"id":1,"deep":' + b"[" * 200 + b"]" * 200 + b"}", {}),
]


def test_each_bad_record_goes_to_the_dead_letter_topic_as_it_was_and_changes_nothing_else(world: World) -> None:
    """Good records before, between and after are merged; bad ones keep key, value and headers."""
    mixed: list[tuple[bytes | None, Any, dict[str, str]]] = [(b"1", {"id": 1, "n": 0}, {})]
    for number, (_, key, value, headers) in enumerate(BAD, 1):
        mixed += [(key, value, headers | {"trace": str(number)}), (b"1", {"id": 1, "n": number}, {})]
    world.publish(mixed)
    worker = world.start()
    world.settle()

    letters = sorted(world.read("dlq"), key=lambda letter: int(letter.headers["trace"]))
    assert [letter.headers["dlq_reason"] for letter in letters] == [reason for reason, *_ in BAD]
    inputs = {f"{world.name}.publish/{seen.partition}/{seen.offset}": seen for seen in world.read("publish")}
    for letter, (_, key, value, headers) in zip(letters, BAD, strict=True):
        assert (letter.key, letter.value) == (key, value)
        assert letter.headers["dlq_detail"]
        assert letter.headers.items() >= headers.items()
        assert inputs[letter.headers["source"]].value == value
    sow = world.read("sow")
    assert last_per_key(sow) == {"1": {"id": 1, "n": len(BAD)}}
    assert [record.headers["version"] for record in sow] == [str(n) for n in range(1, len(BAD) + 2)]
    assert worker.process.poll() is None, worker.log()


def test_a_record_without_a_kafka_key_is_sent_again_with_the_one_in_its_body(world: World) -> None:
    """It is merged once, in the partition of its key."""
    world.publish([(None, {"id": n, "n": n}, {}) for n in range(40)])
    world.start()
    world.wait(lambda: len(world.read("sow")) == 40, "merging 40 records")

    sow = world.read("sow")
    assert last_per_key(sow) == {str(n): {"id": n, "n": n} for n in range(40)}
    world.publish([(b"%d" % n, {"id": n, "again": True}, {}) for n in range(40)])
    world.wait(lambda: len(world.read("sow")) == 80, "merging them again")
    home = {record.key: record.partition for record in sow}
    assert all(home[record.key] == record.partition for record in world.read("sow"))
