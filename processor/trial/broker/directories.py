"""The default directories of the embedded broker, and the lock of processes that share one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processor.store.file_lock import lock_file


def cache_dir() -> Path:
    """The directory of files that can be downloaded again: `$SOWSTREAM_CACHE`, or `sowstream` in the user's cache."""
    if own := os.environ.get("SOWSTREAM_CACHE"):
        return Path(own).expanduser().absolute()
    return _user_directory("XDG_CACHE_HOME", ".cache")


def background_data_dir() -> Path:
    """The directory of the background broker's records: in the user's state directory."""
    return _user_directory("XDG_STATE_HOME", ".local/state") / "broker"


def _user_directory(variable: str, default: str) -> Path:
    """`sowstream` in one of the XDG base directories; by the specification, relative ones are ignored."""
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "sowstream"


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
