"""A program as a guarded process: started, killed without warning, started again, and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processor.trial.broker import guard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_STOP_TIMEOUT_S: Final = 25.0
"""Time for a worker to commit and leave: its own deadline and a little more."""
_LAST_WORDS_S: Final = 5.0
"""Time for a program that did not end to write its stacks to the log."""
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 400


class GuardedProcess:
    """One program under a guard, usually a worker.

    The guard ends the program when this process ends, for any reason.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        cwd: Path | None = None,
        stop_timeout_s: float = _STOP_TIMEOUT_S,
        env: Mapping[str, str | None] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Configure the process; it runs from `start` on.

        Args:
            name: its display name; also its log's name.
            command: the program and its arguments.
            directory: the directory of its log.
            cwd: its working directory; None: that of its log.
            stop_timeout_s: time for an orderly end.
            env: more environment variables; None removes a variable.
            on_line: called with each line of its output, on a thread; then there is no log. It must not raise.
        """
        self._stop_timeout_s = stop_timeout_s
        self.name = name
        self.log = directory / f"{name.replace(' ', '-')}.log"
        self._command = list(command)
        self._cwd = cwd or directory
        self._env = env or {}
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reader: threading.Thread | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """True if the process runs."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def is_started(self) -> bool:
        """True if it was ever started."""
        return self._guard is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if the process has not been started or still runs."""
        return None if self._guard is None else self._guard.poll()

    @property
    def guard_pid(self) -> int:
        """The guard's process id; the program is its only child."""
        assert self._guard is not None, f"{self.name} was never started"
        return self._guard.pid

    def start(self) -> None:
        """Start the program, for the first time or again; it appends to its log."""
        order = {
            "commands": [self._command],
            "log": None if self._on_line is not None else str(self.log),
            "remove": None,
            "stop_timeout_s": self._stop_timeout_s + _LAST_WORDS_S,
        }
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **self._env}
        # A session of its own: Ctrl-C on the terminal is for this process, and `kill` reaches the worker too.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if self._on_line is None else subprocess.PIPE,
            cwd=self._cwd,
            env={name: value for name, value in environment.items() if value is not None},
            start_new_session=True,
        )
        if self._on_line is not None:
            name = f"output of {self.name}"
            self._reader = threading.Thread(target=self._read, args=(self._guard,), name=name, daemon=True)
            self._reader.start()

    def kill(self) -> None:
        """Kill the program with `kill -9`, like a power cut."""
        if self._guard is not None and self.is_running:
            self._signal(signal.SIGKILL)
            self._guard.wait()
            self._close()

    def ask_to_stop(self) -> None:
        """Ask the program to commit and end, by SIGTERM."""
        self._close()

    def await_end(self) -> int:
        """Wait for the program to end, by force if that takes too long; returns its exit code."""
        assert self._guard is not None, f"{self.name} was never started"
        self._close()
        try:
            self._guard.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            # Python writes every thread's stack to the log before it dies of this signal.
            self._signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_LAST_WORDS_S)
        finally:
            # A guard that ended by itself has waited for its worker's end.
            if self._guard.returncode is None or self._guard.returncode < 0:
                self._signal(signal.SIGKILL)
        code = self._guard.wait()
        if self._reader is not None:
            self._reader.join(_LAST_WORDS_S)
        return code

    def tail(self) -> str:
        """The end of its log, or of its output."""
        if self._on_line is not None:
            return "\n".join(self._last_lines)
        if not self.log.exists():
            return "(no log)"
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return "\n".join(line.rstrip()[:_TAIL_WIDTH] for line in deque(lines, _TAIL_LINES))

    def _read(self, guarding: subprocess.Popen[bytes]) -> None:
        """Pass the lines of the program on until it and its guard have ended."""
        assert guarding.stderr is not None
        assert self._on_line is not None
        with guarding.stderr as output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip("\n")
                self._last_lines.append(text[:_TAIL_WIDTH])
                self._on_line(text)

    def _close(self) -> None:
        """Close the pipe: the guard's order to end the program."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the guard and the program."""
        assert self._guard is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, number)
