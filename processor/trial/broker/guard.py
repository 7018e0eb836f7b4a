"""A guard process that ends the broker when the guard's parent ends, for any reason, including kill -9.

Run as a program; it imports only a few modules of the standard library, so that it starts at once:
`python -I -S guard.py '{"commands": [[...], ...], "log": FILE | null, "remove": DIR | null, "stop_timeout_s": N}'`.
Without a log, the commands write to the guard's standard error.
Its standard input is a pipe that its parent holds open; the end of the pipe is the order to stop. If there is a
directory to remove and the commands end by themselves, the guard closes its standard output and waits for that order:
the parent may want to read the logs first.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_LOOK_S = 0.1
"""Time between two checks of the broker. The end of the pipe is noticed at once."""


class Guard:
    """Watches one parent process, and runs one program at a time."""

    def __init__(self, stop_timeout_s: float) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._parent = os.getppid()
        self._is_signalled = False
        # SIGABRT goes to the process group and makes the program write its stacks: stay until it has ended.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
            signal.signal(number, self._on_signal)

    def run(self, command: list[str], log: str | None) -> int:
        """Run one command until it ends or must stop; returns its exit code."""
        with contextlib.nullcontext(2) if log is None else Path(log).open("ab") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while process.poll() is None:
            if self._must_stop():
                self._end(process)
        return process.returncode

    def await_release(self) -> None:
        """Signal the end of all commands by closing standard output; return when the parent closes the pipe."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        while not self._must_stop():
            pass

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._is_signalled = True

    def _must_stop(self) -> bool:
        """Wait a moment for the end of the pipe; returns whether to stop.

        A child that the parent forked may hold the pipe open after the parent's end: then the parent's process id
        changes.
        """
        ended, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        return bool(ended) or self._is_signalled or os.getppid() != self._parent

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """Run the commands while each succeeds, then remove the directory if there is one."""
    order = json.loads(sys.argv[1])
    guard = Guard(order["stop_timeout_s"])
    code = 0
    try:
        for command in order["commands"]:
            code = guard.run(command, order["log"])
            if code != 0:
                break
    finally:
        if order["remove"]:
            guard.await_release()
            shutil.rmtree(order["remove"], ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
