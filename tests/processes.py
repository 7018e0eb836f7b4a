"""Distributes tests over several processes, `pytest -n 2 --dist loadfile`, and gives all of them one broker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

from processor.errors import Stop

if TYPE_CHECKING:
    from processor.trial.broker import EmbeddedBroker

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


class SharedBroker:
    """The broker of all processes of a run, kept by the process that distributes the tests.

    It starts with the first question, as many runs need none; if it does not start, each question has the reason.
    """

    def __init__(self, broker: EmbeddedBroker, start: Callable[[EmbeddedBroker], None]) -> None:
        """Wait for questions.

        Args:
            broker: the broker, not started.
            start: starts it.
        """
        self._broker = broker
        self._start = start
        self._listener = Listener(family="AF_UNIX")
        threading.Thread(target=self._answer_all, name="shared broker", daemon=True).start()

    @property
    def door(self) -> str:
        """The path at which `shared_bootstrap` asks."""
        return str(self._listener.address)

    def stop(self) -> None:
        """End the broker, if one was started."""
        self._listener.close()
        self._broker.stop()

    def _answer_all(self) -> None:
        answer: str | Stop = ""
        with contextlib.suppress(OSError):  # The listener is closed.
            while True:
                with self._listener.accept() as asking:
                    answer = answer or self._answer()
                    with contextlib.suppress(BrokenPipeError):  # Its process is gone.
                        asking.send(answer)

    def _answer(self) -> str | Stop:
        try:
            self._start(self._broker)
        except Stop as error:
            return error
        return self._broker.bootstrap


def shared_bootstrap(door: str) -> str:
    """The address of the run's broker, as soon as it is ready.

    Raises:
        Stop: it did not start; with the reason.
    """
    with Client(door) as broker:
        answer = broker.recv()
    if isinstance(answer, Stop):
        raise answer
    return str(answer)
