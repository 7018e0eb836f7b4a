"""Runs the tests in several processes, `pytest --processes 4`, and gives all of them one broker.

The tests are collected once, and the processes are forked from the one that did it: the imports of all test files take
longer than most files run. A process runs a file at a time, and sends its reports to the first one, which shows them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from processor.errors import Stop

if TYPE_CHECKING:
    from processor.trial.broker import EmbeddedBroker

_SPARK = "tests/spark/"


def run(session: pytest.Session, count: int) -> None:
    """Run the tests of a session in so many processes.

    Raises:
        pytest.Session.Failed, pytest.Session.Interrupted: a plug-in ended the session, such as `-x` after a failure.
    """
    shares = deque(_shares(session.items))
    processes: dict[Connection, _Process] = {}
    numbers = itertools.count()

    def start() -> None:
        process = _Process(session, next(numbers), processes)
        processes[process.connection] = process

    try:
        for _ in range(min(count, len(shares))):
            start()
        while processes:
            for connection in wait([*processes]):
                assert isinstance(connection, Connection)
                if processes[connection].receive(shares):
                    continue
                if unrun := processes.pop(connection).end():
                    shares.appendleft(unrun)
                    start()
            if session.shouldfail or session.shouldstop:
                shares.clear()
                for process in processes.values():
                    process.stop()
    finally:
        for process in processes.values():
            process.interrupt()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


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


def _shares(items: Iterable[pytest.Item]) -> Iterable[list[int]]:
    """The numbers of the tests of each file; those of all of Spark's files, as a second Spark would cost too much."""
    shares: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        name = item.nodeid.partition("::")[0]
        shares.setdefault(_SPARK if name.startswith(_SPARK) else name, []).append(number)
    return shares.values()


class _Process:
    """A process that runs tests, as the first process sees it."""

    def __init__(self, session: pytest.Session, number: int, siblings: Iterable[Connection]) -> None:
        self._session = session
        self._todo: deque[int] = deque()
        self._running: int | None = None
        self._is_stopped = False
        self.connection, other = Pipe()
        directory = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            # Otherwise it would not see the end of the first process.
            for connection in (self.connection, *siblings):
                connection.close()
            code = 1
            try:
                _Runner(session, other).run(directory / f"process-{number}")
                code = 0
            except BaseException:  # noqa: BLE001 - nothing is above
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                # What it has from the first process is not its own to clean up.
                os._exit(code)
        other.close()

    def receive(self, shares: deque[list[int]]) -> bool:
        """Take a message; returns False if the process has ended."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return False
        if kind == "share":
            share = shares.popleft() if shares else []
            self._todo += share
            with contextlib.suppress(BrokenPipeError):
                self.connection.send(share)
        elif kind == "begin":
            self._running = self._todo.popleft()
        elif kind == "end":
            self._running = None
        else:
            hook = self._session.config.hook
            report = hook.pytest_report_from_serializable(config=self._session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        return True

    def stop(self) -> None:
        """Let it end after the running test."""
        if not self._is_stopped:
            self._is_stopped = True
            self._todo.clear()
            with contextlib.suppress(BrokenPipeError):
                self.connection.send(None)

    def interrupt(self) -> None:
        """End it as Ctrl-C does."""
        os.kill(self._pid, signal.SIGINT)
        self.connection.close()
        os.waitpid(self._pid, 0)

    def end(self) -> list[int]:
        """Wait for its end; returns the tests that it has not run. The test that it died of is a failure."""
        self.connection.close()
        _, status = os.waitpid(self._pid, 0)
        if self._running is not None and not self._session.shouldstop:
            item = self._session.items[self._running]
            code = os.waitstatus_to_exitcode(status)
            reason = f"its process ended with {signal.Signals(-code).name if code < 0 else code}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        return [*self._todo]


class _Runner:
    """Runs tests in a process of their own, and sends their reports to the first process."""

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session, self._connection = session, connection

    def run(self, directory: Path) -> None:
        """Run shares of the tests until there is none; temporary files are in a directory of its own."""
        self._have_own_files(directory)
        self._session.config.pluginmanager.register(self)
        try:
            self._run_shares()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._session._setupstate.teardown_exact(None)

    def _run_shares(self) -> None:
        items, hook = self._session.items, self._session.config.hook
        todo = deque(self._ask())
        while todo:
            number = todo.popleft()
            # Only with the next test is it known which fixtures end after this one.
            todo += () if todo else self._ask()
            if self._connection.poll():  # It is to stop.
                self._session._setupstate.teardown_exact(None)
                return
            self._connection.send(("begin", number))
            hook.pytest_runtest_protocol(item=items[number], nextitem=items[todo[0]] if todo else None)
            self._connection.send(("end", number))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._connection.send(("report", data))

    def _ask(self) -> list[int]:
        self._connection.send(("share", None))
        return self._connection.recv() or []

    def _have_own_files(self, directory: Path) -> None:
        config = self._session.config
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        reporter: Any = config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process
        directory.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = directory
        random.seed()


class SharedBroker:
    """The broker of all processes of a run, kept by the process that distributes the tests.

    It starts with the first question, as many runs need none; if it does not start, each question has the reason.
    """

    def __init__(
        self, broker: EmbeddedBroker, start: Callable[[EmbeddedBroker], None], *, is_needed: bool = False
    ) -> None:
        """Wait for questions.

        Args:
            broker: the broker, not started.
            start: starts it.
            is_needed: whether it starts now, by another thread.
        """
        self._broker = broker
        self._start = start
        self._is_needed = is_needed
        self._is_settled = threading.Event()
        self._listener = Listener(family="AF_UNIX")
        threading.Thread(target=self._answer_all, name="shared broker", daemon=True).start()

    @property
    def door(self) -> str:
        """The path at which `shared_bootstrap` asks."""
        return str(self._listener.address)

    def settle(self) -> None:
        """Wait until the thread does nothing but wait for questions, so that the process can be forked."""
        self._is_settled.wait()

    def stop(self) -> None:
        """End the broker, if one was started."""
        self._listener.close()
        self._broker.stop()

    def _answer_all(self) -> None:
        answer = self._answer() if self._is_needed else ""
        self._is_settled.set()
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
