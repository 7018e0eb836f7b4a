"""Shows what `sowstream up` does: sentences on a terminal, JSON log lines elsewhere, with those of its programs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.stdlib.get_logger("sowstream.up")

_SHOWN_LEVELS: Final = ("warning", "error", "critical")
_SELF_EVIDENT: Final = ("event", "level", "logger", "timestamp", "exception", "kind", "exit_code")
"""The parts of a log line that a sentence for people leaves out."""
_LAST_LINES: Final = 5
_WIDTH: Final = 400


class Report:
    """The output of `sowstream up`, on standard error.

    A terminal that was closed is no error: the programs must be ended all the same.
    """

    def __init__(self, *, is_verbose: bool) -> None:
        """Begin.

        Args:
            is_verbose: show every log line of the programs on a terminal too.
        """
        self.is_terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        colours = not os.environ.get("NO_COLOR")
        self._renderer = structlog.dev.ConsoleRenderer(colors=colours) if self.is_terminal and is_verbose else None

    def say(self, sentence: str, event: str, **facts: object) -> None:
        """Show one step: the sentence on a terminal, else the event with its facts."""
        if self.is_terminal:
            self._write(sentence)
        else:
            with contextlib.suppress(OSError):
                log.info(event, **facts)

    def show(self, program: str, line: str) -> None:
        """Show a line of a program's output: each one, or on a terminal without `-v` warnings and errors."""
        event = parsed(line)
        if not self.is_terminal:
            self._write(line)
        elif self._renderer is not None:
            # The settings fill several screens; `sowstream worker` shows those that are not the defaults.
            if event is None or event.get("event") != "settings":
                self._write(f"{program}: {line if event is None else self._renderer(None, '', dict(event))}")
        elif event is not None and event.get("level") in _SHOWN_LEVELS and event.get("event") != "ended":
            self._write(f"{program}: {sentence(event)}")

    def last_lines(self, tail: str) -> str:
        """The last lines of a program that has failed, readable; without the settings and the lines of its start."""
        lines = []
        for line in tail.splitlines():
            event = parsed(line)
            if event is None:
                lines.append(line)
            elif event.get("event") not in ("settings", "processors", "ended"):
                lines.append(f"{event.get('level')}: {sentence(event)}")
        return "\n".join(f"  {line[:_WIDTH]}" for line in lines[-_LAST_LINES:])

    def _write(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def parsed(line: str) -> Mapping[str, Any] | None:
    """The event of a log line; None: it is another line."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def sentence(event: Mapping[str, Any]) -> str:
    """A log line for people: its event, and its facts in brackets."""
    facts = ", ".join(f"{name} {value}" for name, value in event.items() if name not in _SELF_EVIDENT)
    return f"{event.get('event')}{f' ({facts})' if facts else ''}"


def reason_in(tail: str) -> str:
    """The reason of its end that a program has logged, or printed, last; empty: there is none."""
    for line in reversed(tail.splitlines()):
        event = parsed(line)
        if event is not None and event.get("event") == "ended":
            return str(event.get("error"))
        if event is None and line.startswith("sowstream: "):
            return line.removeprefix("sowstream: ")
    return ""
