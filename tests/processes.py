"""Distributes tests over several processes: `pytest -n 2 --dist loadfile`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling

_SPARK = "tests/spark/"


class Shares(LoadFileScheduling):
    """A scheduler that gives each file to one process, and all of Spark's files to the same one.

    A second Spark session would cost more time than it saves.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else super()._split_scope(nodeid)


def waiting_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order of distribution: Spark's files, then those that wait for a broker, then the others.

    The others are many, short and never wait: they fill the remaining time, so all processes end together.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return [item for name in sorted(files, key=lambda name: _turn(name, files[name])) for item in files[name]]


def _turn(name: str, items: list[pytest.Item]) -> int:
    if name.startswith(_SPARK):
        return 0
    return 1 if any("bootstrap" in item.fixturenames or item.get_closest_marker("broker") for item in items) else 2
