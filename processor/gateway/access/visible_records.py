"""The record of a key as one user may see it: a record that the user may not read does not exist for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import SowstreamError
from processor.filter.evaluation import NO_METADATA, RecordMetadata
from processor.subscriptions.current_records import wall_ms
from processor.wire.record_headers import version_of
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.record import Record, Value
    from processor.subscriptions import Engine, Topic
    from processor.subscriptions.entitlement import Entitlement

STEP_S: Final = 0.02
"""Answers that must not differ in time are sent after a multiple of this time."""
_LOOK_S: Final = 0.005
_LOOK_MAX_S: Final = 0.05


class CurrentRecord(NamedTuple):
    """The record of a key in the gateway's view. All fields have their defaults where there is none."""

    version: int = 0
    """Its version."""
    value: Value = None
    """Its parsed value; None also for one that cannot be parsed."""
    metadata: RecordMetadata = NO_METADATA
    """Its metadata."""
    record: Record | None = None
    """The record itself."""

    def is_visible(self, read: Entitlement | None) -> bool:
        """Return whether there is a record that a right to read allows to see."""
        return read is not None and self.value is not None and read.allows(self.value, self.metadata)


NO_RECORD: Final = CurrentRecord()


def current_record(topic: Topic, engine: Engine, key: str) -> CurrentRecord:
    """Look up the record of a key; one whose time is over counts as none."""
    record = engine.find(key.encode(errors="surrogatepass"))
    if record is None or is_over(record, wall_ms()):
        return NO_RECORD
    try:
        value = topic.value(record)
    except SowstreamError:
        value = None  # Nobody sees a record that cannot be parsed.
    return CurrentRecord(version_of(record.headers) or 0, value, topic.metadata_of(record), record)


async def wait_for_record(
    feed: KafkaFeed, key: str, holds: Callable[[CurrentRecord], bool], timeout_s: float
) -> CurrentRecord:
    """Wait until something holds for the record of a key in the view, at most for a time; return the record of then."""
    loop = asyncio.get_running_loop()
    until_s, pause_s = loop.time() + timeout_s, _LOOK_S
    while True:
        engine = feed.engine
        current = NO_RECORD if engine is None else current_record(feed.topic, engine, key)
        if (engine is not None and holds(current)) or loop.time() >= until_s:
            return current
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LOOK_MAX_S)


async def wait_for_step(began_s: float) -> None:
    """Wait until a multiple of `STEP_S` has passed since a request came.

    The time of an answer then does not say whether a record was looked at that the user may not see.

    Args:
        began_s: the time at which the request came, by the event loop's clock.
    """
    passed_s = asyncio.get_running_loop().time() - began_s
    await asyncio.sleep(STEP_S - passed_s % STEP_S)
