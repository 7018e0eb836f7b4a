"""A lock between processes: an advisory lock on a file, which the system releases when its holder dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processor.store.file_lock import lock_file


@contextmanager
def exclusive(path: Path, *, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; if another process holds it, print `waiting` and wait.

    The file stays: removing it would let two processes lock two files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            lock_file(file)
        except BlockingIOError:
            sys.stderr.write(f"{waiting}\n")
            lock_file(file, waits=True)
        yield
