"""Which memory allocator serves a process, and how a program is started with jemalloc, as in the image.

librdkafka and RocksDB take and free memory on many threads, thousands of pieces at a time, often not on the thread that
took them. jemalloc is made for that; it has to be there before the program is, so the loader is told of it.
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
"""What serves a process that was started without another."""
_M_MMAP_THRESHOLD: Final = -3  # Its number in malloc.h.
_LARGE_BLOCK_BYTES: Final = 256 * 1024
_MAPS: Final = Path("/proc/self/maps")
_ALLOCATORS: Final = re.compile(r"lib(jemalloc|mimalloc|tcmalloc)[^/]*\.so")


def in_use(maps: Path = _MAPS) -> str:
    """The allocator of this process: `jemalloc`, `mimalloc`, `tcmalloc`, or `libc` if it is none of these.

    Args:
        maps: the list of its libraries, which Linux alone has.
    """
    try:
        found = _ALLOCATORS.search(maps.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return LIBC
    return LIBC if found is None else found[1]


def return_large_blocks() -> bool:
    """Have glibc give blocks of 256 KiB and more back to the system when they are freed; whether it does.

    Left alone it raises the limit with the first large block that is freed, up to 32 MiB. Records of a megabyte, taken
    on one thread and freed on another, then leave holes: 3,000 deltas on such a record came to 440 MB for outputs of
    16 MB, and come to 120 MB with a fixed limit.
    """
    if sys.platform != "linux" or in_use() != LIBC:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries than glibc have none.
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES))


def environment() -> dict[str, str]:
    """What to add to a program's environment for jemalloc; nothing where it is not installed, or another is chosen."""
    if sys.platform != "linux" or os.environ.get("LD_PRELOAD"):
        return {}
    library = find_library("jemalloc")
    return {"LD_PRELOAD": library} if library else {}


def whole_environment() -> dict[str, str]:
    """The environment of this process, with that added."""
    return {**os.environ, **environment()}


def of_programs() -> str:
    """The allocator of a program that is started with `environment`."""
    return "jemalloc" if environment() else in_use()
