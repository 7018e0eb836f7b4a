"""Scrapes workers' metrics repeatedly, as Prometheus and Kubernetes' probes do, and records each failure."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Self, TypeAlias

from processor.trial.broker.server import HOST
from tests.programs.faults.broker.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def quiet_ports(count: int) -> list[int]:
    """Free ports in sequence: the processes of one `state_dir` take them in turn."""
    while True:
        first = quiet_port()
        if all(_is_free(first + number) for number in range(1, count)):
            return [first + number for number in range(count)]


Sample: TypeAlias = tuple[str, dict[str, str], float]
"""A metric: name, labels, value."""


def samples(port: int) -> list[Sample]:
    """The metrics that a process serves: names, labels, values.

    Raises:
        OSError, http.client.HTTPException: no process answers, or its answer is not HTTP.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return parsed(text)


def parsed(page: str) -> list[Sample]:
    """The metrics of a page: names, labels, values."""
    matches = (_SAMPLE.match(line) for line in page.splitlines())
    return [(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])) for match in matches if match]


class Scrape:
    """Scrapes the processes at some ports, while a block lasts."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Set the ports; the block scrapes them."""
        self.asked: dict[int, int] = defaultdict(int)
        """Number of scrapes of each port since its first answer."""
        self.failures: dict[int, list[str]] = defaultdict(list)
        """The failed scrapes since then, by port."""
        self.first_s: dict[int, float] = {}
        """Time of each port's first answer, on the monotonic clock."""
        self.slowest_s = 0.0
        """Duration of the slowest answer."""
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(port,), name=f"scrape {port}", daemon=True) for port in ports
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop scraping: the processes may end now."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, port: int) -> None:
        while not self._over.wait(_PAUSE_S):
            began_s = time.monotonic()
            self.asked[port] += port in self.first_s
            try:
                samples(port)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if port in self.first_s:
                    self.failures[port].append(f"{type(error).__name__}: {error}")
                continue
            self.first_s.setdefault(port, time.monotonic())
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
