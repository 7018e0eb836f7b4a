"""The fast path writes the same records as the merge in parts."""

from __future__ import annotations

import importlib.util
import json
import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge import fast_path
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.api import Record

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

    def _take_or_reject(self, record: Record, *more: Any) -> int:
        type(self).in_parts += 1
        return super()._take_or_reject(record, *more)


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


def _told(processor: type[DeltaMerge], settings: TopicConfig, commands: list[Command]) -> dict[str, Any]:
    with closing(ProcessorTestDriver(processor, settings, name="orders")) as driver:
        for begin in range(0, len(commands), 37):
            driver.pipe_batch(commands[begin : begin + 37])
            driver.commit()
            driver.advance_time(2_000, punctuations_max=0)  # What is over is found by who comes next.
        roles = ("sow", "delta", "dlq", "publish", "ack")
        return {role: driver.read_output(role) for role in roles} | {"events": dict(driver.events)}


@pytest.fixture(params=["compiled", "pure"])
def way(request, monkeypatch) -> str:
    """The ways to merge plain deltas of JSON."""
    if request.param == "compiled" and importlib.util.find_spec("processor.builtin.delta_merge.fast_path_json") is None:
        pytest.skip("compiled_deltas was not compiled")
    monkeypatch.setattr(fast_path, "has_compiled", request.param == "compiled")
    return request.param


@pytest.mark.parametrize("settings", [
    {}, {"null_policy": "set"}, {"null_policy": "remove"}, {"merge_depth": 1}, {"max_record_bytes": 400},
    {"source_header": True}, {"default_command": "publish"}, {"expiration": 5}, {"key": ["/a/b"]},
    {"key": "explicit"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", range(2))
def test_the_fast_path_writes_the_same_as_the_merge_in_parts(way, settings, seed) -> None:
    """Records, deltas, dead letters and conflicts of every command are equal, with their headers, in every batch."""
    topic = TopicConfig(dlq_max_ratio=1, **settings)
    commands = list(_commands(seed, 3_000))
    found = _told(DeltaMerge, topic, commands)
    assert found == _told(InParts, topic, commands)
    assert found["delta"]
    assert found["dlq"]
    assert found["events"]["conflict"]


def test_most_records_take_the_fast_path(way) -> None:
    """Records without headers and with the right key take the fast path."""
    commands: list[Command] = [(b"%d" % (n % 10), b'{"id":%d,"n":%d}' % (n % 10, n), []) for n in range(1_000)]
    Counting.in_parts = 0
    found = _told(Counting, TopicConfig(), [*commands, (b"1", None, [])])
    assert len(found["delta"]) == 1_001
    assert Counting.in_parts == 1
