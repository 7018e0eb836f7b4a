"""The directory of one partition's database: locks it for one process, and removes an unused one."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from processor.errors import StateLocked
from processor.store import layout
from processor.store.errors import mapped_errors
from processor.store.file_lock import lock_file

if TYPE_CHECKING:
    from pathlib import Path


def lock(directory: Path) -> IO[bytes]:
    """Create the directory if it is missing, and lock it; the lock ends when the returned file is closed.

    Raises:
        StateLocked: another process uses it.
        DiskUnusable: the disk is full, read-only, failing or forbidden.
    """
    with mapped_errors("opening", directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / layout.LOCK_FILE).open("a+b")
    try:
        with mapped_errors("locking", directory):
            try:
                lock_file(file)
            except BlockingIOError:
                raise StateLocked(
                    f"{directory} is in use by another process; give each worker its own state_dir, or stop the other"
                ) from None
    except BaseException:
        file.close()
        raise
    _remove_former(directory)
    touch(file)
    return file


def touch(file: IO[bytes]) -> None:
    """Record on disk that the directory is in use, or was until now."""
    with suppress(OSError, ValueError):  # As on a disk that accepts no writes.
        os.utime(file.fileno())


def _remove_former(directory: Path) -> bool:
    """Remove a database that a process had moved aside before it ended; returns whether there was one."""
    aside = directory / layout.FORMER_DIRECTORY
    is_there = aside.is_dir()
    shutil.rmtree(aside, ignore_errors=True)
    return is_there


def last_used_s(directory: Path) -> float | None:
    """The time when the database was last opened or closed, seconds since the epoch; None: there is no database.

    One that is being removed counts: the process may have ended in between.
    """
    if not any((directory / name).is_dir() for name in (layout.ROCKSDB_DIRECTORY, layout.FORMER_DIRECTORY)):
        return None
    try:
        return (directory / layout.LOCK_FILE).stat().st_mtime
    except FileNotFoundError:
        return None


def destroy(directory: Path) -> None:
    """Remove the database, or any other file in its place; no process may have it open.

    A link to a directory on another disk stays: the lock of the partition is there.

    Raises:
        DiskUnusable: it cannot be removed.
    """
    database = directory / layout.ROCKSDB_DIRECTORY
    with mapped_errors("wiping", directory):
        for place in (directory, database):
            if place.is_file() or (place.is_symlink() and (place == database or not place.is_dir())):
                place.unlink()
        with suppress(FileNotFoundError):
            shutil.rmtree(database)


def discard(directory: Path) -> bool:
    """Remove a database that is not in use; False: there is none, or a process has it open.

    It is moved aside under its lock, so that a process that opens the directory meanwhile sees all of it or nothing.
    The lock file stays: another process may be about to lock it.

    Raises:
        DiskUnusable: it cannot be removed.
    """
    aside = directory / layout.FORMER_DIRECTORY
    with mapped_errors("removing", directory):
        try:
            file = (directory / layout.LOCK_FILE).open("r+b")
        except FileNotFoundError:
            return False  # The lock file was deleted, perhaps while a process uses the database.
        with file:
            try:
                lock_file(file)
            except BlockingIOError:
                return False
            is_removed = _remove_former(directory)
            try:
                (directory / layout.ROCKSDB_DIRECTORY).rename(aside)
            except FileNotFoundError:
                return is_removed
        shutil.rmtree(aside, ignore_errors=True)
    return True
