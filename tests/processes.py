"""How tests are shared out where several processes run them: `pytest -n 2 --dist loadfile`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling

_SPARK = "tests/spark/"


class Shares(LoadFileScheduling):
    """A file is one process's, and so is all of Spark's: a second session would cost more than it brings."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else super()._split_scope(nodeid)


def waiting_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Files in the order in which they are given out: Spark's, then those that wait for a broker, then the others.

    The others are many, short and never wait: they fill what time is left, and all processes end together.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return [item for name in sorted(files, key=lambda name: _turn(name, files[name])) for item in files[name]]


def _turn(name: str, items: list[pytest.Item]) -> int:
    if name.startswith(_SPARK):
        return 0
    return 1 if any("bootstrap" in item.fixturenames or item.get_closest_marker("broker") for item in items) else 2
