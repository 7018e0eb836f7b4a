"""A worker's place on its machine: a small number that nobody else has, the same one after a restart."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import uuid
import zlib
from typing import IO, TYPE_CHECKING

from processor.errors import Stop

if TYPE_CHECKING:
    from pathlib import Path

_SLOTS_MAX = 1024
_IDENTITY = re.compile(rb"([0-9a-f]{32})\n")
_IDENTITY_BYTES_MAX = 64


class Slot:
    """Held by a file lock for as long as the process lives, however it ends.

    Transactional ids are made of it. A worker that was killed comes back to the same slot and so to the same id,
    and Kafka ends the transaction it left open at once, not after `transaction.timeout.ms`.

    A UUID in the file is part of the name. So two installations whose hosts and directories are named alike, as pods of
    one release name in two namespaces or clusters, never fence each other. It lasts as long as the directory: a worker
    that was killed and comes back without its directory has another name, and its partitions wait until the open
    transaction times out (`transaction_timeout_s`).
    """

    def __init__(self, state_dir: Path) -> None:
        """Take the first free slot of a state directory.

        Raises:
            Stop: the directory cannot be used.
        """
        directory = state_dir / "slots"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file, self.number = _take(directory)
            identity = _identity(self._file)
        except OSError as error:
            raise Stop(f"state_dir {state_dir}: {error.strerror}; choose a directory this user may write to") from error
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:60]
        # Each directory has its slot 0: two on one host must not fence each other's producers for ever.
        place = zlib.crc32(bytes(state_dir.resolve()))
        self.name = f"{host}-{place:08x}-{self.number}-{identity}"
        """The host's name, a mark of the directory, the number and the UUID: `worker-2-5f3a01c7-0-3f2a…`, 32 digits."""

    def release(self) -> None:
        """Let somebody else have it."""
        self._file.close()


def _identity(file: IO[bytes]) -> str:
    """The UUID of a slot, a new one for a slot that has none yet; the file then says who holds the slot, too.

    The UUID stands first and is never overwritten: a crash while the process id is written leaves it as it was.
    """
    file.seek(0)
    written = _IDENTITY.match(file.read(_IDENTITY_BYTES_MAX))
    identity = uuid.uuid4().hex if written is None else written[1].decode()
    if written is None:
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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return file, number
    raise OSError(0, f"all {_SLOTS_MAX} slots are taken")
