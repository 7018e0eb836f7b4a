"""What the conflater says of itself: how many keys wait for the end of their interval, and for how long."""

from __future__ import annotations

import http.client
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.tools.demo.settings import Setup

_EVERY_S: Final = 0.5
_TIMEOUT_S: Final = 0.5
_GAUGES: Final = "sowstream_gauge"


class Waiting(NamedTuple):
    """The updates that wait in one conflated topic, all partitions together."""

    keys: int
    """How many keys have one."""
    oldest_s: float
    """How long the one has waited that waits longest."""


class Meter:
    """Asks the conflater for its metrics, now and then."""

    def __init__(self, setup: Setup, port: int) -> None:
        """Ask nobody yet.

        Args:
            setup: what is configured.
            port: where the conflater serves its metrics, on this machine.
        """
        self._setup = setup
        self._port = port
        self._asked_s = 0.0
        self._waiting: Mapping[str, Waiting] = {}

    def waiting(self, name: str) -> Waiting | None:
        """What waits in `prices_1s` and so on; None while nobody says."""
        if time.monotonic() - self._asked_s >= _EVERY_S:
            try:
                self._waiting = read_waiting(self._ask())
            except (OSError, http.client.HTTPException):
                self._waiting = {}  # Not started yet, or ended: what it said is no longer so.
            self._asked_s = time.monotonic()
        return self._waiting.get(self._setup.family(name))

    def _ask(self) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()


def read_waiting(metrics: str) -> dict[str, Waiting]:
    """What waits, by conflated topic, out of metrics in Prometheus' text format."""
    found: dict[str, Waiting] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name != _GAUGES:
            continue
        for sample in family.samples:
            name, gauge = sample.labels["processor"], sample.labels["gauge"]
            before = found.get(name, Waiting(0, 0.0))
            if gauge == "pending_keys":
                found[name] = before._replace(keys=before.keys + int(sample.value))
            elif gauge == "oldest_pending_seconds":
                found[name] = before._replace(oldest_s=max(before.oldest_s, sample.value))
    return found
