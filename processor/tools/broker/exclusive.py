"""A lock between processes: an advisory lock on a file, which the system releases when its holder dies."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, *, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; if another process holds it, print `waiting` and wait.

    The file stays: removing it would let two processes lock two files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"{waiting}\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
