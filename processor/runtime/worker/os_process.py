"""The worker and its operating system: the memory allocator, signals that end the process, and the report of its end.

librdkafka and RocksDB allocate and free thousands of blocks on many threads, often on different ones. jemalloc suits
that; it must be loaded before the program, through `LD_PRELOAD`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
from _thread import start_new_thread
from ctypes.util import find_library
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from processor.errors import SowstreamError


log = structlog.stdlib.get_logger("sowstream.worker")

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""The default `terminationMessagePath` in Kubernetes, which creates the file before a container starts."""
MESSAGE_BYTES_MAX: Final = 4096
"""Kubernetes truncates longer messages."""
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIBC: Final = "libc"
"""The allocator of a process that was started without another."""
_M_MMAP_THRESHOLD: Final = -3  # Its number in malloc.h.
_LARGE_BLOCK_BYTES: Final = 256 * 1024
_MAPS: Final = Path("/proc/self/maps")
_ALLOCATORS: Final = re.compile(r"lib(jemalloc|mimalloc|tcmalloc)[^/]*\.so")


def in_use(maps: Path = _MAPS) -> str:
    """Detect the allocator of this process: `jemalloc`, `mimalloc`, `tcmalloc`, or `libc` if it is none of these.

    Args:
        maps: the list of its libraries, which only Linux has.
    """
    try:
        match = _ALLOCATORS.search(maps.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return LIBC
    return LIBC if match is None else match[1]


def return_large_blocks() -> bool:
    """Configure glibc to return freed blocks of 256 KiB and more to the system; returns whether it does.

    By default glibc raises the limit up to 32 MiB with the first large block that is freed. Records of a megabyte,
    allocated on one thread and freed on another, then fragment the heap: 3,000 deltas on such a record took 440 MB for
    outputs of 16 MB, and take 120 MB with a fixed limit.
    """
    if sys.platform != "linux" or in_use() != LIBC:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries than glibc have none.
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES))


def environment() -> dict[str, str]:
    """Build the variables that load jemalloc; none if it is not installed, or if the user has set `LD_PRELOAD`."""
    if sys.platform != "linux" or os.environ.get("LD_PRELOAD"):
        return {}
    library = find_library("jemalloc")
    return {"LD_PRELOAD": library} if library else {}


def whole_environment() -> dict[str, str]:
    """Copy the environment of this process, with those variables."""
    return {**os.environ, **environment()}


def of_programs() -> str:
    """Name the allocator of a program that is started with `environment`."""
    return "jemalloc" if environment() else in_use()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt with the name of the first signal that ends the process, and ignore later ones.

    Later signals cannot disturb the clean-up, so each of its steps must be bounded in time.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _ENDS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_signal() -> threading.Event:
    """Create an event that SIGTERM, SIGINT and SIGHUP set from now on.

    The kernel drops a SIGTERM if the first process of a container has no handler for it: so a worker calls this before
    it does anything else.
    """
    stop = threading.Event()
    for number in _ENDS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # As `nohup` has it.
        # On a thread of its own: a signal may arrive while this one has the lock of the event, as in `wait`.
        signal.signal(number, lambda *_: start_new_thread(stop.set, ()))
    return stop


def report_end(error: SowstreamError) -> None:
    """Report the reason as a log line, unless the log goes to a terminal, and as the termination message.

    The file for the message is not created if it is missing.
    """
    code = 2 if isinstance(error, ConfigurationError) else 1
    if not sys.stderr.isatty():
        log.error("ended", error=str(error), kind=type(error).__name__, exit_code=code)
    with contextlib.suppress(OSError):
        if os.access(TERMINATION_LOG, os.W_OK):
            TERMINATION_LOG.write_bytes(str(error).encode()[:MESSAGE_BYTES_MAX])
