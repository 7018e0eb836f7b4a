"""Which memory allocator serves a process, and how a program is started with jemalloc, as in the image.

librdkafka and RocksDB take and free memory on many threads, thousands of pieces at a time, often not on the thread that
took them. jemalloc is made for that; it has to be there before the program is, so the loader is told of it.
"""

from __future__ import annotations

import os
import re
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Final

LIBC: Final = "libc"
"""What serves a process that was started without another."""
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
