"""The compiled fold writes the same records as the merge in parts, and merges nothing but plain commands."""

from __future__ import annotations

import json
import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.delta_merge.plain import compiled_fold, is_plain_command, is_plain_state, only_merges
from processor.codec.json import JsonCodec
from processor.config import TopicConfig
from processor.record import Record, Stored
from processor.testing import ProcessorTestDriver
from processor.wire.command import KEY_BYTES_MAX
from processor.wire.partition_marks import Lives
from tests.builtin.delta_merge.both_ways import BothWays, needs_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas


Command = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]

_KEYS = 12
_ODD = (
    b"", b"{", b"[1]", b'"text"', b"7", b"null", b'{"a":1e999}', b'{"a":%b1}' % (b" " * 400), b'\0\0\0\0\7{"a":1}',
)  # fmt: skip
_HEADERS = (
    ("remove", b'["/a"]'), ("expiration", b"9"), ("correlation_id", b"c"), ("own", b"h"),
    ("expect_version", b"0"), ("expect_version", b"2"),
)  # fmt: skip


class InParts(DeltaMerge):
    """Has a clock of its own, the context's, so that no record takes the fast path."""

    def __init__(self) -> None:
        super().__init__(clock=lambda _: self._context.now_ms)


class Counting(DeltaMerge):
    """Counts the records that were not plain."""

    in_parts = 0

    def _merge_or_reject(self, merge: Callable[[Record], None], record: Record) -> int:
        type(self).in_parts += 1
        return super()._merge_or_reject(merge, record)


def _value(rng: random.Random, depth: int = 0) -> Any:
    plain = [None, 0, 1, 1.0, True, False, "", "1", -0.0, 0.0, 2**64, "é", "y" * 150, [], [1], [True], {}]
    if depth < 2 and rng.random() < 0.3:
        return {rng.choice("abc"): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return rng.choice(plain)


def _commands(seed: int, count: int) -> Iterator[Command]:
    """Mostly plain deltas, and everything that is not."""
    rng = random.Random(seed)
    for _ in range(count):
        number = rng.randrange(_KEYS)
        key = b"%d" % number
        body = {name: _value(rng) for name in rng.sample("abcd", rng.randrange(4))}
        said = rng.choice([number, str(number), str(number), number + 1, None, True, float(number), [number]])
        if rng.random() < 0.8:
            said = str(number)
        if rng.random() < 0.9:
            body = {"id": said, **body} if rng.random() < 0.5 else {**body, "id": said}
        value: bytes | None = json.dumps(body, separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
        headers: list[tuple[str, bytes]] = []
        chance = rng.random()
        if chance < 0.03:
            value = None
        elif chance < 0.06:
            value = rng.choice(
                [b"", b"{", b"[1]", b'"text"', b"7", b"null", b'{"a":1e999}', b'{"a":"' + b"x" * 600 + b'"}']
            )
        elif chance < 0.09:
            headers = [("command", rng.choice([b"publish", b"sow_delete", b"delta_publish", b"what"]))]
        elif chance < 0.12:
            headers = [rng.choice(_HEADERS)]
        elif chance < 0.13:
            key = rng.choice([None, b"other", b"\0sowstream/moved/x"])
        yield key, value, headers


def _with_two_key_fields(seed: int, commands: Iterator[Command], *, is_turned: bool) -> Iterator[Command]:
    """The same commands under keys of /id and /k, most of them as they have to be."""
    rng = random.Random(seed)
    for key, value, headers in commands:
        if key is None or not key.isdigit():
            yield key, value, headers
            continue
        part = rng.choice(["x", "x", "x", "é", '"', "", "7"])
        separators = (", ", ": ") if rng.random() < 0.03 else (",", ":")
        parts = [part, key.decode()] if is_turned else [key.decode(), part]
        two = json.dumps(parts, ensure_ascii=rng.random() < 0.03, separators=separators).encode()
        try:
            body = json.loads(value or b"")
        except ValueError:
            body = None
        if isinstance(body, dict) and rng.random() < 0.9:
            own = {"k": part if rng.random() < 0.9 else rng.choice([7, None, "y"])}
            body = {**body, **own} if rng.random() < 0.5 else {**own, **body}
            message: bytes | None = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        else:
            message = value
        yield two if rng.random() < 0.97 else rng.choice([b'["1"', b'["1","x","x"]', b"[1,2]"]), message, headers


def _told(processor: type[DeltaMerge], settings: TopicConfig, commands: list[Command]) -> dict[str, Any]:
    with closing(ProcessorTestDriver(processor, settings, name="orders")) as driver:
        for begin in range(0, len(commands), 37):
            driver.pipe_batch(commands[begin : begin + 37])
            driver.commit()
            driver.advance_time(2_000, punctuations_max=0)  # What is over is found by who comes next.
        roles = ("sow", "delta", "dlq", "publish", "ack")
        return {role: driver.read_output(role) for role in roles} | {"events": dict(driver.events)}


@needs_compiled
@pytest.mark.parametrize("settings", [
    {}, {"null_policy": "set"}, {"null_policy": "remove"}, {"merge_depth": 1}, {"max_record_bytes": 400},
    {"source_header": True}, {"default_command": "publish"}, {"expiration": 5}, {"key": ["/a/b"]},
    {"key": ["/id", "/k"]}, {"key": ["/k", "/id"], "null_policy": "set"},
    {"key": "explicit"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_fast_path_writes_the_same_as_the_merge_in_parts(settings, seed) -> None:
    """Records, deltas, dead letters and conflicts of every command are equal, with their headers, in every batch."""
    topic = TopicConfig(dlq_max_ratio=1, **settings)
    generated = _commands(seed, 3_000)
    if len(topic.key_fields) == 2:
        generated = _with_two_key_fields(seed, generated, is_turned=topic.key_fields[0] == "/k")
    commands = list(generated)
    Counting.in_parts = 0
    found = _told(Counting, topic, commands)
    assert found == _told(InParts, topic, commands)
    assert found["delta"]
    assert found["dlq"]
    assert found["events"]["conflict"]
    if set(settings) <= {"key", "null_policy"} and settings.get("key") not in (["/a/b"], "explicit"):
        assert Counting.in_parts < 0.7 * len(commands)


@needs_compiled
def test_most_records_take_the_fast_path() -> None:
    """Records without headers and with the right key take the fast path."""
    commands: list[Command] = [(b"%d" % (n % 10), b'{"id":%d,"n":%d}' % (n % 10, n), []) for n in range(1_000)]
    Counting.in_parts = 0
    found = _told(Counting, TopicConfig(), [*commands, (b"1", None, [])])
    assert len(found["delta"]) == 1_001
    assert Counting.in_parts == 1


SETTINGS = TopicConfig(max_record_bytes=300)
NOT_PLAIN: list[dict[str, Any]] = [
    {"merge_rules": {"/n": "sum"}},
    {"expiration": 5},
    {"source_header": True},
    {"sequence_groups": [{"by": "/at", "fields": ["/n"]}]},
]


def commands() -> Iterator[tuple[Record, Stored | None]]:
    """Yield commands, plain or not for one or more reasons, with the record that each meets."""
    rng = random.Random(20261123)
    states = (
        None, Stored(1, b'{"id":7,"n":1}'), Stored(1, b'{"id":7}', expires_at_ms=9), Stored(3, b'{"id":7}', 0, 4),
        Stored(1, b'{"id":7}', expiration=b"9"),
    )  # fmt: skip
    values = (b'{"id":7,"n":2}', b'{"n":3}', b'{"id":8}', b"{", None, b'{"id":7,"t":"%b"}' % (b"x" * 300))
    headers = (None, [], [("trace", b"t")], [("expiration", b"9")], [("command", b"publish")])
    for offset in range(2_000):
        key = rng.choice((b"7", b"7", b"7", b"8", None, b"7" * (KEY_BYTES_MAX + 1)))
        yield Record(key, rng.choice(values), rng.choice(headers), offset, 0), rng.choice(states)


def is_merged(fold: CompiledDeltas, record: Record, stored: Stored | None) -> bool:
    """Return whether a fast path merges a command, instead of leaving it."""
    left: list[Record] = []

    def take(record: Record) -> int:
        left.append(record)
        return 0

    fold([record], {record.key or b"": stored}, {}, [], [], take, lambda _: False)
    return not left


@needs_compiled
def test_the_compiled_fold_merges_plain_commands_only():
    """A command that `is_plain_command` or `is_plain_state` denies is left, and most of the others are merged."""
    fold = BothWays(max_record_bytes=300).compiled
    merged = plain = 0
    for record, stored in commands():
        is_plain = is_plain_command(record, SETTINGS) and is_plain_state(stored)
        is_taken = is_merged(fold, record, stored)
        assert is_plain or not is_taken, (record, stored)
        merged, plain = merged + is_taken, plain + is_plain
    assert 0.3 * plain < merged < plain


@pytest.mark.parametrize("settings", NOT_PLAIN, ids=str)
def test_a_topic_that_does_more_than_merge_is_not_folded(settings: dict[str, Any]):
    """Rules, an expiration and the source of records keep a topic from the compiled fold."""
    topic, codec = TopicConfig(**settings), JsonCodec()
    assert not only_merges(topic)
    assert compiled_fold(topic, codec, Lives(), partition=0, partitions=1) is None
