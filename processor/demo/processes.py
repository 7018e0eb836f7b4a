"""Worker processes, real ones: started, killed without warning, started again, ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from processor.broker import guard
from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.demo.settings import Setup

_STOP_TIMEOUT_S: Final = 25.0
"""For a worker to commit and leave: its own deadline and a little more."""
_LAST_WORDS_S: Final = 5.0
"""For one that did not to write down where it hangs."""
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 400


class WorkerProcess:
    """One worker as its own operating system process.

    A guard stands between: it ends the worker when this process ends, by whatever cause.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        stop_timeout_s: float = _STOP_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Say what to run; nothing happens before `start`.

        Args:
            name: how people call it; also its log's name.
            command: program and arguments.
            directory: where its log goes.
            stop_timeout_s: for an orderly end.
            env: more of its environment.
        """
        self._stop_timeout_s = stop_timeout_s
        self.name = name
        self.log = directory / f"{name.replace(' ', '-')}.log"
        self._command = list(command)
        self._directory = directory
        self._env = env or {}
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is there."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def is_started(self) -> bool:
        """Whether it was ever started."""
        return self._guard is not None

    @property
    def exit_code(self) -> int | None:
        """How it ended, None if it has not been started or runs."""
        return None if self._guard is None else self._guard.poll()

    def start(self) -> None:
        """Start it, for the first time or again; its log goes on."""
        order = {
            "commands": [self._command],
            "log": str(self.log),
            "remove": None,
            "stop_timeout_s": self._stop_timeout_s + _LAST_WORDS_S,
        }
        # A session of its own: Ctrl-C on the terminal is for us, and `kill` reaches the worker too.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **self._env},
            start_new_session=True,
        )

    def kill(self) -> None:
        """What a power cut does: `kill -9`, no chance to say goodbye."""
        if self._guard is not None and self.is_running:
            self._signal(signal.SIGKILL)
            self._guard.wait()
            self._close()

    def ask_to_stop(self) -> None:
        """Tell it to commit and end; it gets SIGTERM."""
        self._close()

    def await_end(self) -> int:
        """Wait for it to end, by force if that takes too long; its exit code."""
        assert self._guard is not None, f"{self.name} was never started"
        self._close()
        try:
            self._guard.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            # Python writes every thread's stack to the log before it dies of this one.
            self._signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_LAST_WORDS_S)
        finally:
            # A guard that ended by itself has seen its worker's end.
            if self._guard.returncode is None or self._guard.returncode < 0:
                self._signal(signal.SIGKILL)
        return self._guard.wait()

    def tail(self) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(no log)"
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return "\n".join(line.rstrip()[:_TAIL_WIDTH] for line in deque(lines, _TAIL_LINES))

    def _close(self) -> None:
        """Close the pipe: the guard's order to end the worker."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        """Reach the guard and the worker alike."""
        assert self._guard is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, number)


class Team:
    """All workers of the demo."""

    def __init__(self, setup: Setup, directory: Path) -> None:
        def worker(name: str, command: Literal["worker", "conflate"], **env: str) -> WorkerProcess:
            return WorkerProcess(name, _command(command, setup), directory, env=env)

        self.metrics_port = _free_port()
        """Where the conflater tells how it stands."""
        self.mergers = [worker("worker 1", "worker"), worker("worker 2", "worker")]
        self.conflater = worker("conflate", "conflate", SOWSTREAM_RUNTIME__METRICS_PORT=str(self.metrics_port))
        self._down: set[str] = set()

    @property
    def all(self) -> list[WorkerProcess]:
        """Every process."""
        return [*self.mergers, self.conflater]

    def start(self) -> None:
        """Start all."""
        for process in self.all:
            process.start()

    def kill(self, process: WorkerProcess) -> None:
        """Kill one, on purpose."""
        self._down.add(process.name)
        process.kill()

    def revive(self, process: WorkerProcess) -> None:
        """Start one again that was killed."""
        process.start()
        self._down.discard(process.name)

    def require_alive(self) -> None:
        """See that nobody is missing, save whom we killed.

        Raises:
            Stop: a worker ended by itself; with the end of its log.
        """
        for process in self.all:
            if not process.is_running and process.name not in self._down:
                raise Stop(f"{process.name} ended with exit code {process.exit_code}")

    def stop(self) -> dict[str, int]:
        """End all in good order, at the same time; their exit codes, also of those that had ended."""
        started = [process for process in self.all if process.is_started]
        for process in started:
            process.ask_to_stop()
        return {process.name: process.await_end() for process in started}

    def tails(self) -> str:
        """The end of every log."""
        return "\n".join(f"── {process.name}: {process.log.name}\n{process.tail()}" for process in self.all)


def _free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _command(command: str, setup: Setup) -> list[str]:
    # The first process of a state directory serves metrics on the very port that it is told.
    state_dir = setup.state_dir if command == "worker" else setup.state_dir / "conflated"
    options = ["-c", str(setup.file), "--bootstrap", setup.bootstrap, "--state-dir", str(state_dir)]
    names = setup.config.topics if command == "worker" else setup.config.conflated
    return [sys.executable, "-m", "processor.cli.main", command, *names, *options]
