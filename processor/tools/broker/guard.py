"""Stands between a process and its broker, and ends the broker when that process ends: by whatever cause, kill -9 too.

Run as a program, with no import but the standard library's few, so that it starts at once:
`python -I -S guard.py '{"commands": [[...], ...], "log": FILE, "remove": DIR | null, "stop_timeout_s": N}'`.
Its standard input is a pipe that its parent holds open; the end of the pipe is the order to stop. Where there is a
directory to remove and the commands end by themselves, the guard closes its standard output and waits for that order:
the parent may want to read the logs first.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_LOOK_S = 0.1
"""Between two looks at the broker. The end of the pipe is seen at once."""


class Guard:
    """One parent watched, one program at a time run."""

    def __init__(self, stop_timeout_s: float) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._parent = os.getppid()
        self._told = False
        # SIGABRT goes to the whole group and makes the program write its stacks: stay until it has, and has ended.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
            signal.signal(number, self._on_signal)

    def run(self, command: list[str], log: Path) -> int:
        """Run one command to its end, or until there is a reason to stop; its exit code."""
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while process.poll() is None:
            if self._must_stop():
                self._end(process)
        return process.returncode

    def await_release(self) -> None:
        """Tell the parent, by the end of standard output, that nothing runs any more; return when it lets go."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        while not self._must_stop():
            pass

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._told = True

    def _must_stop(self) -> bool:
        """Wait a moment for the end of the pipe.

        A child that the parent forked may hold the pipe open after the parent is gone: then its number tells.
        """
        ended, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        return bool(ended) or self._told or os.getppid() != self._parent

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """Run the commands while each succeeds, then remove what is to be removed."""
    order = json.loads(sys.argv[1])
    guard = Guard(order["stop_timeout_s"])
    code = 0
    try:
        for command in order["commands"]:
            code = guard.run(command, Path(order["log"]))
            if code != 0:
                break
    finally:
        if order["remove"]:
            guard.await_release()
            shutil.rmtree(order["remove"], ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
