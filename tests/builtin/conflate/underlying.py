"""The SOW topic under a conflated one, and a driver that reads it."""

from __future__ import annotations

from typing import Any

from processor.builtin.conflate import Conflate
from processor.config import ConflatedConfig, TopicConfig
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import bodies

INTERVAL_MS = 1000


class Underlying:
    """Writes SOW records as a delta merge would, versions and all, into the driver of their copy."""

    def __init__(self, **settings: Any) -> None:
        self.versions: dict[str, int] = {}
        """The version of each live record."""
        self._ended: dict[str, int] = {}
        self.driver = ProcessorTestDriver(
            Conflate,
            ConflatedConfig(**{"underlying": "orders", "interval": "1s", **settings}),
            name="orders_1s",
            topic=TopicConfig(),
            underlying="orders",
        )

    def record(self, key: str, body: Any, **headers: str) -> tuple[str, Any, dict[str, str]]:
        """The next record of a key: its whole body, or None for a delete."""
        is_new = key not in self.versions
        version = self.versions[key] = (self._ended.get(key, 0) if is_new else self.versions[key]) + 1
        kind = {}
        if body is None:
            kind = {"kind": "delete"}
            self._ended[key] = self.versions.pop(key)
        elif is_new:
            kind = {"kind": "insert"}
        return key, body, {"version": str(version), **kind, **headers}

    def update(self, key: str, body: Any, **headers: str) -> None:
        """One update, given to the driver."""
        self.driver.pipe_batch([self.record(key, body, **headers)])


def delivered(orders: Underlying) -> list[object]:
    """The bodies that the open transaction delivers; the transaction is committed."""
    records = orders.driver.pending_output("sow")
    orders.driver.commit()
    return bodies(records)
