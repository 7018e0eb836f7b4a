"""Maps failures of RocksDB and the file system to Sowstream's errors: damage, an unusable disk, a lock held elsewhere.

rocksdict raises one class of error for everything; only RocksDB's text distinguishes them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from processor.errors import DiskFull, DiskUnusable, SowstreamError, StateDamaged, StateLocked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SETTING: Final = "state_dir (a client: view_dir)"
_TO_DO: Final = {
    errno.ENOSPC: f"make room, or give {_SETTING} a larger disk",
    errno.EDQUOT: "raise the quota of this user, or make room",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "mount the file system for writing",
    errno.EIO: f"look at the system's log; if the disk is failing, give {_SETTING} another one",
    errno.EACCES: "let this user read and write there",
    errno.EPERM: "let this user read and write there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
    errno.ENOMEM: "give the process more memory, or lower runtime.block_cache_bytes",
    errno.ENOTDIR: "something else stands where a directory belongs: move it away",
    errno.EISDIR: "a directory stands where a file belongs: move it away",
    errno.ENAMETOOLONG: f"choose a shorter {_SETTING}",
    errno.ENOLCK: f"give {_SETTING} a file system that has locks",
    errno.EOPNOTSUPP: f"give {_SETTING} a file system that has locks",
}
"""The remedy for errors that wiping and restoring cannot cure."""

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_REPORTED_BY_ROCKSDB: Final = {*_TO_DO, errno.EAGAIN} - {errno.ENOTDIR, errno.EISDIR, errno.ENOLCK}
"""Within its directory, RocksDB reports a wrong file type, which is damage, and a lock that another process holds."""


@contextmanager
def mapped_errors(doing: str, directory: Path) -> Iterator[None]:
    """Convert the errors of rocksdict and the file system to ours.

    Args:
        doing: the action, for the message: `writing`.
        directory: the directory of the partition.

    Raises:
        DiskUnusable: the disk is full (`DiskFull`), read-only, failing or forbidden; the state on it is intact.
        StateLocked: another process has the database open.
        StateDamaged: anything else.
    """
    try:
        yield
    except SowstreamError:
        raise
    except Exception as error:
        raise _meaning(error, doing, directory) from error


def _meaning(error: Exception, doing: str, directory: Path) -> SowstreamError:
    text = str(error)
    number = error.errno if isinstance(error, OSError) else _number(text)
    if number in _TO_DO:
        kind = DiskFull if number in _FULL else DiskUnusable
        return kind(
            f"{doing} {directory}: {text} ({_room(directory)}). Nothing is lost, the SOW topic has everything: "
            f"{_TO_DO[number]}, then start again"
        )
    # Our own lock is taken first; this is for a directory whose lock file was deleted while in use.
    if "lock" in text.lower() and ("lock hold by current process" in text or number == errno.EAGAIN):
        return StateLocked(f"{directory} is in use by another process: {text}")
    return StateDamaged(f"{doing} {directory}: {text}")


def _number(text: str) -> int | None:
    """The error number in a text of RocksDB's, which has it at the end of a line, or of Rust's; None: there is none."""
    if (number := re.search(r"\(os error (\d+)\)$", text)) is not None:
        return int(number[1])
    if "IO error" not in text:
        return None
    ends = {line.rpartition(": ")[2].strip() for line in text.splitlines()}
    return next((number for number in _REPORTED_BY_ROCKSDB if os.strerror(number) in ends), None)


def _room(directory: Path) -> str:
    """The room left on the disk of a directory, which may not exist yet."""
    for place in (directory, *directory.parents):
        try:
            free = shutil.disk_usage(place).free
        except OSError:
            continue
        return f"{free / 1e6:,.1f} MB are free there"
    return "the free space there is unknown"
