"""The memory allocator of a command that should return memory to the system: that of the C library."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

ALLOCATOR: Final = "PYTHONMALLOC"
"""Python's own variable, which it reads when it starts."""


def restart_with_malloc() -> None:
    """Start this program again, as the same process, with the C library's allocator, unless one is chosen already.

    Python's own allocator returns an arena of 1 MB only when nothing in it is in use, so the memory of 10,000 closed
    connections stays with a few objects that are left.
    """
    if ALLOCATOR in os.environ or not sys.executable:
        return
    os.environ[ALLOCATOR] = "malloc"
    with suppress(OSError):  # It goes on as it is.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
