"""`sowstream view` whose turns are timed: `timed_view FILE view NAME… -c FILE`; writes the long ones when it ends."""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processor.cli.main import main
from processor.runtime.loop.stream_thread import StreamThread

_LONG_S = 0.02

_long: list[tuple[str, float, float, float]] = []
"""Of each turn that was not short: pipeline, end on the monotonic clock, which all processes share, seconds, and
seconds of processor time: a busy machine and the wait for a commit are in the former alone."""


def _timed(thread: StreamThread, messages: Sequence[Any], began_s: float, *, waited_s: float) -> None:
    begun_s, cpu_s = time.monotonic(), time.thread_time()
    _process_and_commit(thread, messages, began_s, waited_s=waited_s)
    ended_s = time.monotonic()
    if ended_s - begun_s > _LONG_S:
        _long.append((thread._pipeline.name, ended_s, ended_s - begun_s, time.thread_time() - cpu_s))


_process_and_commit: Any = StreamThread._process_and_commit

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    StreamThread._process_and_commit = _timed  # type: ignore[method-assign,assignment]
    atexit.register(lambda: file.write_text(json.dumps(_long)))
    main()
