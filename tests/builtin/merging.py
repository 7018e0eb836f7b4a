"""A driver of the delta merge, and the outputs of any driver in few words, read with no code of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.endtoend.oracle import Seen


def seen(records: Iterable[Record]) -> list[Seen]:
    """Records as an independent reader sees them."""
    return [Seen(0, record.offset, record.key, record.value, told(record)) for record in records]


def told(record: Record) -> dict[str, str]:
    """A record's headers as text; none occurs twice."""
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers or ()}
    assert len(headers) == len(record.headers or ())
    return headers


def bodies(records: Iterable[Record]) -> list[object]:
    """The parsed values, None for tombstones."""
    return [None if record.value is None else json.loads(record.value) for record in records]


def written(value: object) -> str:
    """Return a value as text that distinguishes 1, 1.0 and true; the order of members is no difference."""
    return json.dumps(value, sort_keys=True)


def merging(**settings: Any) -> ProcessorTestDriver:
    """A driver of a topic `orders` with such settings, whose stream time is that of the clock."""
    topic = TopicConfig.model_validate(settings)
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, behind_ms=0)


def rejected(driver: ProcessorTestDriver) -> list[tuple[str, str]]:
    """Reason and detail of every dead letter of the open transaction."""
    letters = [told(record) for record in driver.pending_output("dlq")]
    return [(letter["dlq_reason"], letter["dlq_detail"]) for letter in letters]


def kinds(records: list[Record]) -> list[tuple[str, str, str | None]]:
    """Key, version and kind of SOW or delta records."""
    return [((record.key or b"").decode(), told(record)["version"], told(record).get("kind")) for record in records]


def acks(driver: ProcessorTestDriver) -> list[dict[str, Any]]:
    """The parsed acknowledgements of the open transaction."""
    return [json.loads(record.value or b"") for record in driver.pending_output("ack")]
