"""Reads the conflater's metrics: the number of pending updates, and the age of the oldest."""

from __future__ import annotations

import http.client
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.tools.demo.settings import DemoSetup

_EVERY_S: Final = 0.5
_TIMEOUT_S: Final = 0.5
_KEYS: Final = "sowstream_conflation_pending_keys"
_OLDEST: Final = "sowstream_conflation_oldest_pending_seconds"


class PendingFigures(NamedTuple):
    """The pending updates of one conflated topic, over all partitions."""

    keys: int
    """The number of keys with one."""
    oldest_s: float
    """The age of the oldest, in seconds."""


class Meter:
    """Requests the conflater's metrics, now and then."""

    def __init__(self, setup: DemoSetup, port: int) -> None:
        """Create the meter, without a request.

        Args:
            setup: the demo's configuration.
            port: the local port of the conflater's metrics.
        """
        self._setup = setup
        self._port = port
        self._asked_s = 0.0
        self._waiting: Mapping[str, PendingFigures] = {}

    def waiting(self, name: str) -> PendingFigures | None:
        """The pending updates of a conflated topic such as `prices_1s`; None if the conflater does not answer."""
        if time.monotonic() - self._asked_s >= _EVERY_S:
            try:
                self._waiting = read_waiting(self._ask())
            except (OSError, http.client.HTTPException):
                self._waiting = {}  # Not started yet, or ended: the last values are not valid any more.
            self._asked_s = time.monotonic()
        return self._waiting.get(self._setup.family(name))

    def _ask(self) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()


def read_waiting(metrics: str) -> dict[str, PendingFigures]:
    """The pending updates by conflated topic, from metrics in Prometheus' text format."""
    updates: dict[str, PendingFigures] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name not in {_KEYS, _OLDEST}:
            continue
        for sample in family.samples:
            name = sample.labels["processor"]
            before = updates.get(name, PendingFigures(0, 0.0))
            if family.name == _KEYS:
                updates[name] = before._replace(keys=before.keys + int(sample.value))
            else:
                updates[name] = before._replace(oldest_s=max(before.oldest_s, sample.value))
    return updates
