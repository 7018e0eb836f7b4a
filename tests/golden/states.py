"""State directories: those of a worker's partition and of a client's kept view, packed into one file each."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processor.client.feeds.stored_view import StoredView
from processor.record import Record, Stored
from processor.store.contract import Progress
from processor.store.rocksdb import RocksMemory, RocksStore
from processor.wire.record_headers import stored_from

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC_ID: Final = "b5xAgWQ2TAyXnN2QzQ3Hpw"
"""Kafka's id of the SOW topic."""
APPLIED_AT_MS: Final = 1_700_000_000_000
MEMORY_BYTES: Final = 8 << 20


def rows(sow: Iterable[Record]) -> dict[bytes, Stored]:
    """Return the state after some SOW records."""
    state = {record.key or b"": stored_from(record) for record in sow}
    return {key: stored for key, stored in state.items() if stored is not None}


def make_state(directory: Path, sow: list[Record]) -> None:
    """Write the state of `orders.sow` partition 0, as a worker that is stopped in good order leaves it."""
    memory = RocksMemory(MEMORY_BYTES)
    store = RocksStore(directory / "0", identity=f"orders.sow/0/{TOPIC_ID}", memory=memory)
    store.apply(rows(sow), Progress(sow[-1].offset + 1, APPLIED_AT_MS))
    store.close()


def make_view(directory: Path, sow: list[Record]) -> None:
    """Write the kept view of `orders.sow`, as a client that is closed leaves it."""
    view = StoredView(directory, "orders.sow", TOPIC_ID, 1, keeps=True)
    view.put(0, sow)
    view.settle()
    view.close()


def pack(make: object, file: Path, sow: list[Record]) -> None:
    """Write a packed directory to a file."""
    with tempfile.TemporaryDirectory(prefix="sowstream-golden-") as name:
        directory = Path(name)
        make(directory, sow)  # type: ignore[operator]
        with tarfile.open(file, "w:gz") as archive:
            for path in sorted(directory.rglob("*")):
                # RocksDB's log has the settings of the machine, and nothing reads it.
                if path.name != "LOG" and not path.name.startswith("LOG.old"):
                    archive.add(path, path.relative_to(directory), recursive=False, filter=_anonymous)


def unpack(file: Path, directory: Path) -> None:
    """Unpack a directory."""
    with tarfile.open(file) as archive:
        archive.extractall(directory, filter="data")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
