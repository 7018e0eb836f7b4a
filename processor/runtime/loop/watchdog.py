"""Ends a process with a stuck thread: a call that never returns leaves no other way."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import structlog

from processor.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.watchdog")

_GAP_S = 2.0  # Far more than the time between two looks of a running process.


_OUR_WAITS: Final = ("processor.store", "processor.kafka", "processor.runtime")
"""Packages in which a thread waits for a disk or for Kafka: that is no fault of a processor."""


class ProcessorCall:
    """The call of a processor in which a thread is. That thread writes it, and the main thread reads it.

    As a `with` block it is the call; an error that ends it is handled before it is raised.
    """

    __slots__ = ("_handle", "_task", "began_s", "first", "last", "partition", "pipeline")

    def __init__(self, pipeline: str, handle: Callable[[Task, BaseException], None]) -> None:
        """Begin outside of a call.

        Args:
            pipeline: the name of the processor's pipeline.
            handle: called with the task and the error of a call; it may raise another one instead.
        """
        self.pipeline = pipeline
        self.partition = self.first = self.last = -1
        self.began_s = 0.0
        """Time of its begin on the monotonic clock; 0: the thread is in none."""
        self._handle = handle
        self._task: Task

    def of(self, task: Task, first: int, last: int | None = None) -> ProcessorCall:
        """Begin a call with the records of these input offsets; without the second one: of one offset."""
        self._task, self.partition, self.first = task, task.partition, first
        self.last = first if last is None else last
        self.began_s = time.monotonic()
        return self

    def __enter__(self) -> None:
        """Go on with the call that has begun."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call."""
        self.began_s = 0.0
        if error is not None:
            self._handle(self._task, error)


class StuckCall(NamedTuple):
    """A call of a processor that does not return."""

    pipeline: str
    """The pipeline."""
    partition: int
    """The partition."""
    offset: int
    """The offset of the record at which it is; of the first one of the call where that is not known."""
    last: int
    """The offset of the last record of the call."""


class Stuck(NamedTuple):
    """A thread that has not called `beat` for too long, or whose processor does not return."""

    name: str
    """The thread's name."""
    seconds: float
    """Time since its last beat, without the time for which the process was suspended."""
    call: StuckCall | None = None
    """The call of a processor at which it is; None: it is stuck elsewhere."""


class Watchdog:
    """Detects stuck threads: threads beat, and the main thread looks.

    While a process is suspended (SIGSTOP, a paused container) its threads neither beat nor look: such a gap does not
    count. A call that holds the interpreter's lock also blocks the main thread, and is not detected.
    """

    def __init__(
        self, limit_s: float, clock: Callable[[], float] = time.monotonic, *, call_limit_s: float | None = None
    ) -> None:
        """Set the longest time between two beats of a thread, and of a processor's call; None: there is no such."""
        self._limit_s = limit_s
        self._call_limit_s = limit_s if call_limit_s is None else call_limit_s
        self._calls: dict[int, tuple[str, ProcessorCall]] = {}
        self._clock = clock
        self._beats: dict[int, tuple[str, float]] = {}
        self._looked_s = clock()

    def watch(self) -> None:
        """Begin to watch this thread."""
        self._beats[threading.get_ident()] = (threading.current_thread().name, self._clock())

    def watch_call(self, call: ProcessorCall) -> None:
        """Watch the processor's calls of this thread, too."""
        self._calls[threading.get_ident()] = (threading.current_thread().name, call)

    def beat(self) -> None:
        """Note that this thread is not stuck; ignored for a thread that is not watched."""
        if threading.get_ident() in self._beats:
            self.watch()

    def release(self) -> None:
        """Stop watching this thread."""
        self._beats.pop(threading.get_ident(), None)
        self._calls.pop(threading.get_ident(), None)

    def look(self) -> Stuck | None:
        """Return a stuck thread, if there is one. To be called every few tenths of a second."""
        now_s = self._clock()
        gap_s = now_s - self._looked_s
        self._looked_s = now_s
        beats = list(self._beats.items())
        if gap_s > _GAP_S:
            for thread, (name, beaten_s) in beats:
                if self._beats.get(thread) == (name, beaten_s):
                    self._beats[thread] = (name, min(now_s, beaten_s + gap_s))
            for _, call in list(self._calls.values()):
                if (began_s := call.began_s) > 0.0:
                    call.began_s = min(now_s, began_s + gap_s)
            return None
        for thread, (name, call) in list(self._calls.items()):
            began_s = call.began_s
            if began_s > 0.0 and now_s - began_s > self._call_limit_s and (stuck := _stuck_call(thread, call)):
                return Stuck(name, now_s - began_s, stuck)
        for _, (name, beaten_s) in beats:
            if now_s - beaten_s > self._limit_s:
                return Stuck(name, now_s - beaten_s)
        return None

    def check(self, before_end: Callable[[Stuck], None] = lambda _stuck: None) -> None:
        """Look, and end the process if a thread is stuck, after a last call."""
        if (stuck := self.look()) is not None:
            before_end(stuck)
            end(stuck)


def _stuck_call(thread: int, call: ProcessorCall) -> StuckCall | None:
    """The place of a call that does not return; None if its thread waits for a disk or for Kafka."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    if frame is None or frame.f_globals.get("__name__", "").startswith(_OUR_WAITS):
        return None
    offset = call.first
    while frame is not None:
        # The record that the innermost function works on.
        offsets = [value.offset for value in frame.f_locals.values() if type(value) is Record]
        if len(offsets) == 1 and call.first <= offsets[0] <= call.last:
            offset = offsets[0]
            break
        frame = frame.f_back
    return StuckCall(call.pipeline, call.partition, offset, call.last)


def end(stuck: Stuck) -> NoReturn:
    """Log the stack of every thread, and end with exit code 1; Kafka rolls the open transaction back."""
    log.error(
        "a thread is stuck; ending the process, whose open transaction is rolled back. Where each thread is, follows",
        thread=stuck.name,
        call=None if stuck.call is None else stuck.call._asdict(),
        seconds=round(stuck.seconds, 1),
    )
    sys.stdout.flush()
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
