"""Detects the memory allocator of a process, and builds the environment to start a program with jemalloc.

librdkafka and RocksDB allocate and free thousands of blocks on many threads, often on different ones. jemalloc suits
that; it must be loaded before the program, through `LD_PRELOAD`.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Final

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
