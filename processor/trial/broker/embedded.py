"""A broker that lives for the duration of a `with` block, and never longer than the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from processor.errors import BrokerUnavailable
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from processor.trial.broker.server import HEAP, Server, await_ready, choose_port, java_environment

_GUARD = Path(__file__).with_name("guard.py")
_PORT_TRIES_MAX = 3


class EmbeddedBroker:
    """A real Apache Kafka on the loopback address.

    ```python
    with EmbeddedBroker() as broker:
        Client("name", {"bootstrap.servers": broker.bootstrap})
    ```
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int = 0,
        *,
        heap: str = HEAP,
        start_timeout_s: float = 90.0,
        stop_timeout_s: float = 15.0,
    ) -> None:
        """Configure the broker; it runs from `start` on.

        Args:
            data_dir: the directory that keeps the records for the next start; None: a temporary one, removed at the
                end.
            port: the port for clients; 0: any free one.
            heap: Java's `-Xmx`.
            start_timeout_s: longest wait until it is ready, without the download of jars.
            stop_timeout_s: time for an orderly stop; after it the process is killed.
        """
        self._data_dir = data_dir
        self._port = port
        self._heap = heap
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._server: Server | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._temporary: Path | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, `127.0.0.1:PORT`."""
        assert self._server is not None, "start the broker first"
        return self._server.bootstrap

    @property
    def data_dir(self) -> Path:
        """The directory of its records and logs."""
        assert self._server is not None, "start the broker first"
        return self._server.data_dir

    @property
    def is_running(self) -> bool:
        """True while it runs: False before its start, and after an end by itself."""
        return self._guard is not None and not _has_ended(self._guard)

    def last_words(self) -> str:
        """The end of its logged errors, for a message about a broker that has ended."""
        return "" if self._server is None else self._server.last_words()

    def start(self) -> None:
        """Download missing jars, start the broker, and return when it accepts topics and transactions.

        Raises:
            Stop: no Java, no jars, or the port is taken; the message has the advice.
            BrokerUnavailable: it ended or did not become ready; with the end of its logs.
        """
        assert self._guard is None, "the broker is started already"
        java, jars = find_java(), class_path()
        for tries_left in reversed(range(_PORT_TRIES_MAX)):
            try:
                self._run(Server(self._directory(), choose_port(self._port), self._heap, java, jars))
            except BaseException as error:
                # Another process took the free port before Java could use it: only then, try once more.
                lost_race = isinstance(error, BrokerUnavailable) and "Address already in use" in str(error)
                self.stop()
                if not (lost_race and tries_left and self._port == 0):
                    raise
            else:
                return

    def stop(self) -> None:
        """Stop the broker in good order, by force if that takes too long; a temporary directory is removed."""
        guard, self._guard = self._guard, None
        try:
            if guard is not None:
                self._end(guard)
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _directory(self) -> Path:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return self._data_dir.absolute()
        self._temporary = Path(tempfile.mkdtemp(prefix="sowstream-broker-"))
        return self._temporary

    def _run(self, server: Server) -> None:
        server.prepare()
        order = {
            "commands": server.commands(),
            "log": str(server.data_dir / "java.log"),
            "remove": str(self._temporary) if self._temporary else None,
            "stop_timeout_s": self._stop_timeout_s,
        }
        # A session of its own: Ctrl-C on the terminal reaches this process, which then stops the broker in order.
        guard = self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=server.data_dir.parent,
            start_new_session=True,
            env=java_environment(),
        )
        self._server = server
        await_ready(server, has_ended=lambda: _has_ended(guard), timeout_s=self._start_timeout_s)

    def _end(self, guard: subprocess.Popen[bytes]) -> None:
        """Close the pipe, which is the guard's order to stop; kill the process group if it does not, or cannot."""
        assert guard.stdin is not None
        assert guard.stdout is not None
        guard.stdin.close()
        try:
            # A busy machine may be too slow for it, also for removing the files of many topics.
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(self._stop_timeout_s + 5)
        finally:
            if guard.returncode is None or guard.returncode < 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(guard.pid, signal.SIGKILL)
                guard.wait()
            guard.stdout.close()


def _has_ended(guard: subprocess.Popen[bytes]) -> bool:
    """True if the broker has ended: the guard prints nothing, and its output ends then."""
    assert guard.stdout is not None
    return bool(select.select([guard.stdout], [], [], 0)[0])
