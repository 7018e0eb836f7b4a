"""A driver of the delta merge, with its outputs in few words."""

from __future__ import annotations

import json
from typing import Any

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.builtin.reading import told


def merging(**settings: Any) -> ProcessorTestDriver:
    """A driver of a topic `orders` with such settings."""
    topic = TopicConfig.model_validate(settings)
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)


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
