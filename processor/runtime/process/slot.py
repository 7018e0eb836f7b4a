"""The identity of a worker process on its machine: a small unique number, which is the same after a restart."""

from __future__ import annotations

import os
import re
import socket
import uuid
import zlib
from typing import IO, TYPE_CHECKING

from processor.errors import Stop
from processor.store.file_lock import lock_file

if TYPE_CHECKING:
    from pathlib import Path

_SLOTS_MAX = 1024
_IDENTITY = re.compile(rb"([0-9a-f]{32})\n")
_IDENTITY_BYTES_MAX = 64


class ProcessSlot:
    """The number and name of a worker process, reserved by a file lock until the process ends.

    Transactional ids contain the name. A worker that was killed gets the same slot and so the same id after a restart,
    and Kafka ends its open transaction at once, not after `transaction.timeout.ms`.

    A UUID in the file is part of the name. So two installations with equal host and directory names, such as pods of
    one release name in two namespaces or clusters, never fence each other. The UUID lasts as long as the directory: a
    worker that was killed and has lost its directory gets another name, and its partitions wait until the open
    transaction times out (`transaction_timeout_s`).
    """

    def __init__(self, state_dir: Path) -> None:
        """Take the first free slot of a state directory.

        Raises:
            Stop: the directory is not writable, or has no free slot.
        """
        directory = state_dir / "slots"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file, self.number = _take(directory)
            identity = _identity(self._file)
        except OSError as error:
            raise Stop(f"state_dir {state_dir}: {error.strerror}; choose a directory this user may write to") from error
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:60]
        # Each directory has a slot 0: two of one host must not fence each other's producers.
        place = zlib.crc32(bytes(state_dir.resolve()))
        self.name = f"{host}-{place:08x}-{self.number}-{identity}"
        """Host name, checksum of the directory, number and UUID: `worker-2-5f3a01c7-0-3f2a…`, with 32 digits."""

    def release(self) -> None:
        """Release the slot for another process."""
        self._file.close()


def _identity(file: IO[bytes]) -> str:
    """Read or create the UUID of a slot, and write the id of this process behind it.

    The UUID is the first line and never overwritten: a crash while the process id is written does not damage it.
    """
    file.seek(0)
    stored = _IDENTITY.match(file.read(_IDENTITY_BYTES_MAX))
    identity = uuid.uuid4().hex if stored is None else stored[1].decode()
    if stored is None:
        file.truncate(0)
        file.write(f"{identity}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    file.truncate(len(identity) + 1)
    file.write(f"{os.getpid()}\n".encode())
    file.flush()
    return identity


def _take(directory: Path) -> tuple[IO[bytes], int]:
    for number in range(_SLOTS_MAX):
        file = (directory / str(number)).open("a+b")
        try:
            lock_file(file)
        except BlockingIOError:
            file.close()
            continue
        return file, number
    raise OSError(0, f"all {_SLOTS_MAX} slots are taken")
