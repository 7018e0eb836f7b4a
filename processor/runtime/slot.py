"""A worker's place on its machine: a small number that nobody else has, the same one after a restart."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import zlib
from typing import IO, TYPE_CHECKING

from processor.errors import Stop

if TYPE_CHECKING:
    from pathlib import Path

_SLOTS_MAX = 1024


class Slot:
    """Held by a file lock for as long as the process lives, however it ends.

    Transactional ids are made of it. A worker that was killed comes back to the same slot and so to the same id,
    and Kafka ends the transaction it left open at once, not after `transaction.timeout.ms`.
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
        except OSError as error:
            raise Stop(f"state_dir {state_dir}: {error.strerror}; choose a directory this user may write to") from error
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:100]
        # Each directory has its slot 0: two on one host must not fence each other's producers for ever.
        place = zlib.crc32(bytes(state_dir.resolve()))
        self.name = f"{host}-{place:08x}-{self.number}"
        """The host's name, a mark of the directory and the number: `worker-2-5f3a01c7-0`."""

    def release(self) -> None:
        """Let somebody else have it."""
        self._file.close()


def _take(directory: Path) -> tuple[IO[bytes], int]:
    for number in range(_SLOTS_MAX):
        file = (directory / str(number)).open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        return file, number
    raise OSError(0, f"all {_SLOTS_MAX} slots are taken")
