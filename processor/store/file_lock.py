"""Locks an open file between processes; the system releases the lock when the file is closed or its holder dies."""

from __future__ import annotations

import sys
import time
from typing import IO, Final

_PAUSE_S: Final = 0.1


def lock_file(file: IO[bytes] | IO[str], *, waits: bool = False) -> None:
    """Lock an open file.

    On Windows, whose locks are mandatory, one byte far behind the content is locked, so that the file can be read.

    Args:
        file: open for writing.
        waits: whether to wait for another holder.

    Raises:
        BlockingIOError: another process holds the lock, and `waits` is False.
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        _lock_on_windows(file, waits=waits)
    else:
        import fcntl  # noqa: PLC0415 - POSIX only

        fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


if sys.platform == "win32":

    def _lock_on_windows(file: IO[bytes] | IO[str], *, waits: bool) -> None:
        import msvcrt  # noqa: PLC0415 - Windows only

        while True:
            place = file.tell()
            file.seek(1 << 30)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError:
                if not waits:
                    raise BlockingIOError(0, "another process holds the lock") from None
                time.sleep(_PAUSE_S)
            else:
                return
            finally:
                file.seek(place)
