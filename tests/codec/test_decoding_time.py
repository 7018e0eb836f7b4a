"""Decoding a message of one mebibyte takes less than a second, for every message type and any bytes."""

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator

import pytest

from processor.codec import Codec
from processor.codec.contract import GROUP
from processor.entry_points import installed_names
from processor.errors import RecordRejected
from tests.codec import hostile
from tests.codec.avro_world import file_codec
from tests.codec.specimens import SPECIMENS, codec_of

SECONDS_MAX = 1.0
"""Limit of the CPU time in which a mebibyte is decoded or rejected.

The slowest messages take half of it on a machine of two busy cores.
"""

QUARTER = hostile.MIB // 4
"""Bytes of a message in the fast tests, which have a quarter of the time limit."""

NAMES = sorted({*SPECIMENS, "avro"})


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Disable Python's garbage collector, as in a worker: it would spend its time on objects of other tests."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


REPEATS = 4
"""Times that a message which took too long is decoded again."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A message type, or a variant of one."""
    return str(request.param)


@pytest.fixture
def codec(name: str, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    """The codec of the message type."""
    if name == "avro":
        return file_codec(hostile.AVRO_SCHEMA, tmp_path_factory.mktemp("schema"))
    return codec_of(name)


def slow_ones(codec: Codec, messages: Iterable[tuple[str, bytes]], size: int) -> list[str]:
    """The messages that exceed the time limit for their size, each with its seconds."""
    slow = []
    for name, data in messages:
        limit_s = SECONDS_MAX * size / hostile.MIB
        seconds = decoding_s(codec, data)
        for _ in range(REPEATS):
            # Other processes may slow a core down for a while: only a slow message is slow each time.
            if seconds <= limit_s:
                break
            seconds = min(seconds, decoding_s(codec, data))
        if seconds > limit_s:
            slow.append(f"{name} ({len(data)} bytes): {seconds:.2f} s")
    return slow


def decoding_s(codec: Codec, data: bytes) -> float:
    """The CPU time of this thread until a message is decoded or rejected."""
    begin_s = time.thread_time()
    with contextlib.suppress(RecordRejected):
        codec.decode(data)
    return time.thread_time() - begin_s


def test_slow_messages_are_there_for_every_installed_type():
    """Every installed message type has slow messages; a new type needs some."""
    assert set(installed_names(GROUP)) <= set(NAMES)


def test_no_message_takes_longer_than_its_length(codec, name):
    """Slow messages are decoded or rejected in the time that their length allows.

    They hold endless numbers, empty arrays, deep nesting, one name many times and huge lengths.
    """
    assert slow_ones(codec, hostile.messages_of(name, QUARTER).items(), QUARTER) == []


def test_no_fuzzed_message_takes_longer_than_its_length(codec, name, random_seed):
    """Random messages built from slow ones are decoded or rejected in the time that their length allows."""
    messages = hostile.messages_of(name, QUARTER)
    assert slow_ones(codec, hostile.fuzzed(messages, random_seed, 6, QUARTER), QUARTER) == []


@pytest.mark.long
def test_no_message_of_a_mebibyte_takes_a_second(codec, name, random_seed, steps):
    """Slow and fuzzed messages of a mebibyte are decoded or rejected within a second, in each type."""
    messages = hostile.messages_of(name)
    assert slow_ones(codec, messages.items(), hostile.MIB) == []
    assert slow_ones(codec, hostile.fuzzed(messages, random_seed, steps(200)), hostile.MIB) == []
