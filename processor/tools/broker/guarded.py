"""A program of ours as a process of its own: started, killed without warning, started again, ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processor.tools.broker import guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STOP_TIMEOUT_S: Final = 25.0
"""For a worker to commit and leave: its own deadline and a little more."""
_LAST_WORDS_S: Final = 5.0
"""For one that did not to write down where it hangs."""
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 400


class GuardedProcess:
    """One program, most often a worker.

    A guard stands between: it ends the program when this process ends, by whatever cause.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        stop_timeout_s: float = _STOP_TIMEOUT_S,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        """Say what to run; nothing happens before `start`.

        Args:
            name: how people call it; also its log's name.
            command: program and arguments.
            directory: where its log goes.
            stop_timeout_s: for an orderly end.
            env: more of its environment; None takes a variable away.
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

    @property
    def guard_pid(self) -> int:
        """The guard's number; the program is its only child."""
        assert self._guard is not None, f"{self.name} was never started"
        return self._guard.pid

    def start(self) -> None:
        """Start it, for the first time or again; its log goes on."""
        order = {
            "commands": [self._command],
            "log": str(self.log),
            "remove": None,
            "stop_timeout_s": self._stop_timeout_s + _LAST_WORDS_S,
        }
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **self._env}
        # A session of its own: Ctrl-C on the terminal is for us, and `kill` reaches the worker too.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            env={name: value for name, value in environment.items() if value is not None},
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
