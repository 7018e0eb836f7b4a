"""The fast paths merge nothing but plain commands, as `delta_merge.plain` states them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge.plain import is_plain_command, is_plain_state, is_plain_topic, only_merges
from processor.codec.json import JsonCodec
from processor.config import TopicConfig
from processor.merge import KeyFields
from processor.record import Record, Stored
from processor.wire.command import KEY_BYTES_MAX
from spark_integration.merge.batch.runs.plain_runs import PlainRuns
from spark_integration.merge.batch.sequences.sequence_log import SequenceLog
from spark_integration.merge.key_lives import KeyLives
from tests.builtin.both_ways import BothWays, needs_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.builtin.delta_merge.fast_path import MergeBatch

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


def is_merged(way: MergeBatch, record: Record, stored: Stored | None) -> bool:
    """Return whether a fast path merges a command, instead of leaving it."""
    left: list[Record] = []

    def take(record: Record) -> int:
        left.append(record)
        return 0

    way([record], {record.key or b"": stored}, {}, [], [], take, lambda _: False)
    return not left


@needs_compiled
@pytest.mark.parametrize("path", ["compiled", "pure"])
def test_a_fast_path_merges_plain_commands_only(monkeypatch: pytest.MonkeyPatch, path: str):
    """A command that `is_plain_command` or `is_plain_state` denies is left, and most of the others are merged."""
    way = getattr(BothWays(monkeypatch, max_record_bytes=300), path)
    merged = plain = 0
    for record, stored in commands():
        is_plain = is_plain_command(record, SETTINGS) and is_plain_state(stored)
        is_taken = is_merged(way, record, stored)
        assert is_plain or not is_taken, (record, stored)
        merged, plain = merged + is_taken, plain + is_plain
    assert 0.3 * plain < merged < plain


@pytest.mark.parametrize("settings", NOT_PLAIN, ids=str)
def test_a_topic_that_does_more_than_merge_is_plain_for_no_path(settings: dict[str, Any]):
    """Rules, an expiration and the source of records keep a topic from the fast paths of worker and Spark."""
    topic, codec = TopicConfig(**settings), JsonCodec()
    assert not only_merges(topic)
    assert not is_plain_topic(topic, codec, KeyFields(topic.key_fields))
    assert PlainRuns.of(codec, topic, SequenceLog("orders.publish", is_marked=False), KeyLives()) is None


def test_spark_merges_plain_topics_with_any_default_command():
    """A topic whose default is `publish` or whose key has two fields is plain for Spark alone."""
    codec = JsonCodec()
    for topic in (TopicConfig(default_command="publish"), TopicConfig(key=["/a", "/b"])):
        assert not is_plain_topic(topic, codec, KeyFields(topic.key_fields))
        assert PlainRuns.of(codec, topic, SequenceLog("orders.publish", is_marked=False), KeyLives()) is not None
    assert is_plain_topic(TopicConfig(), codec, KeyFields(TopicConfig().key_fields))
