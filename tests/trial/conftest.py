"""Runs `sowstream up` as a user does: on a terminal, or with its output in a pipe."""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

import psutil

from tests.cli.conftest import Cli

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 200.0
CTRL_C = b"\x03"
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard input the controlling terminal of its new session, and runs a command."""


class Up:
    """A running `sowstream up`; its output is read by `until`, and all of its programs are known from then on."""

    def __init__(
        self, directory: Path, *words: str, on_terminal: bool, environment: dict[str, str] | None = None
    ) -> None:
        ours, theirs = pty.openpty() if on_terminal else os.pipe()
        launcher = [sys.executable, "-c", _ON_TERMINAL] if on_terminal else []
        self._process = subprocess.Popen(
            [*launcher, *Cli.command("up", *words)],
            stdin=theirs if on_terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        os.close(theirs)
        self._descriptor = ours
        self.output = ""
        self.programs: list[psutil.Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self.end()
        self.close_terminal()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def until(self, text: str) -> str:
        """Read until the output has a text; returns all of it so far."""
        until_s = time.monotonic() + PATIENCE_S
        while text not in self.output:
            assert time.monotonic() < until_s, self.output
            chunk = self._read()
            assert chunk, f"it ended without {text!r}:\n{self.output}"
            self.output += chunk
        self.programs = psutil.Process(self.pid).children(recursive=True)
        return self.output

    def press(self, keys: bytes) -> None:
        """Type on the terminal."""
        os.write(self._descriptor, keys)

    def close_terminal(self) -> None:
        """Close the window, or the reader of the pipe."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it with `kill -9`."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Read to the end, and wait for it; returns the exit code."""
        while self._descriptor >= 0 and (chunk := self._read()):
            self.output += chunk
        return self._process.wait(PATIENCE_S)

    def left(self) -> list[psutil.Process]:
        """Wait for the end of its programs; returns those that still run."""
        _, running = psutil.wait_procs(self.programs, PATIENCE_S)
        return running

    def _read(self) -> str:
        try:
            return os.read(self._descriptor, 65_536).decode(errors="replace").replace("\r\n", "\n")
        except OSError as error:
            if error.errno != errno.EIO:  # The end of a terminal.
                raise
            return ""
